"""Projections to other links, and the emulated link against a real one."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Few,
    Many,
    Measured,
    PerSecond,
    Proportion,
    SignedSeconds,
    Status,
)
from schemas.results.runs import Provenance, Topology


class LinkTrial(Schema):
    """One configuration, run over both links."""

    name: str
    """Name of the change to DistributedDataParallel."""
    bandwidth: PerSecond
    """Bits per second."""
    status: Status
    """Whether both could be timed."""
    reason: str | None
    """Why they could not be timed."""
    real_seconds: Elapsed | None
    """Median time of a step over the real link."""
    emulated_seconds: Elapsed | None
    """Median time of a step over the emulated link."""
    error: Measured | None
    """Time over the emulated link relative to the real one, minus 1, from the ratios of adjacent
    windows."""


class LinkError(Schema):
    """results/links/error.json: how far the emulated link is from the real one."""

    trials: list[LinkTrial]
    """All configurations; no model parameter was fitted to any of them."""
    median_error: Measured | None
    """Median absolute error; null if none was measured."""
    worst_error: Measured | None
    """Largest absolute error."""


class ReadyGradient(Schema):
    """One parameter, in the order in which backward completes the gradients."""

    bytes: Bytes
    """Size of the gradient."""
    seconds: Elapsed
    """From the start of backward until the gradient is ready, median over the steps."""
    layer: Few | None
    """Number of the repeated layer that it belongs to; null outside these layers."""


class ComputeTimes(Schema):
    """Timings of a device's micro-batch with all devices of its host working but not
    communicating; each moment is that at which the last device reaches it."""

    variant: str
    """Variant that does this work."""
    status: Status
    """How the measurement ended."""
    reason: str | None
    """Why there are no timings, if the status is not ok."""
    micro_batches: Few
    """Micro-batches of a step."""
    forward_seconds: Elapsed | None
    """Forward of a micro-batch, median."""
    backward_seconds: Elapsed | None
    """Backward of a micro-batch, median."""
    update_seconds: Elapsed | None
    """Clipping and optimizer's step, median."""
    other_seconds: SignedSeconds | None
    """The rest of a step: input, zeroing gradients."""
    gradients: list[ReadyGradient]
    """Every parameter."""
    source_tokens: Amount | None
    """Mean source tokens of a micro-batch on the device, including padding."""
    target_tokens: Amount | None
    """Mean target tokens, likewise."""
    vocabulary: Many | None
    """Logits per target token."""
    topology: Topology | None
    """Devices and processes of the measurement."""
    provenance: Provenance | None
    """Where this record comes from."""


class ComputeRecord(Schema):
    """results/projection/compute.json."""

    times: list[ComputeTimes]
    """One entry per distinct workload among the multi-device variants."""


ProjectedStrategy = Literal[
    "ddp", "ddp_no_overlap", "accumulation_sync", "accumulation_no_sync", "fsdp", "central"
]


class ProjectedPoint(Schema):
    """A step on a given number of devices, each with the same work."""

    devices: Few
    """Number of devices."""
    step_seconds: Elapsed
    """Time of a step."""
    exposed_seconds: SignedSeconds
    """Communication time that is not hidden."""
    efficiency: Amount
    """Throughput per device over that of a single device, 0 to 1."""


class ProjectedCurve(Schema):
    """One strategy on one link, by number of devices."""

    strategy: ProjectedStrategy
    """The strategy."""
    link: str
    """Name of the link; measured for the machine's own link."""
    bucket_mb: Amount | None
    """Size of the gradient buckets in MiB; null if there are none."""
    points: list[ProjectedPoint]
    """Points from one device upwards."""
    knee: Few | None
    """Smallest number of devices at which communication takes more than half of the step; null
    if it never does."""


class TriedBucket(Schema):
    """A bucket size and its step time."""

    bucket_mb: Amount
    """Size in MiB."""
    step_seconds: Elapsed
    """Time of a step with it."""


class BestBucket(Schema):
    """The bucket size with the shortest DistributedDataParallel step."""

    link: str
    """Name of the link."""
    devices: Few
    """Number of devices."""
    bucket_mb: Amount
    """Size in MiB; the smallest among equally good ones."""
    step_seconds: Elapsed
    """Time of a step with it."""
    default_step_seconds: Elapsed
    """Time of a step with buckets of 25 MiB."""
    tried: list[TriedBucket]
    """All sizes, smallest first."""


class ProjectionCheck(Schema):
    """A multi-process run, predicted and measured."""

    variant: str
    """Name of the variant."""
    devices: Few
    """Processes of the run."""
    link: str
    """The assumed link: measured, or the run's limited one."""
    strategy: ProjectedStrategy | None = None
    """The strategy that it checks; null if the model does not cover it."""
    predicted_seconds: Elapsed | None
    """Predicted time of a step; null if the model does not cover the variant."""
    measured_seconds: Elapsed
    """Median time of a step."""
    error: Measured | None
    """Predicted over measured, minus 1."""
    note: str
    """Why there is no prediction; empty if there is one."""


class MeasuredLink(Schema):
    """The link between the machine's devices, fitted to its all-reduce times."""

    bandwidth: PerSecond
    """Bits per second, fitted."""
    latency: SignedSeconds
    """Seconds, fitted."""
    world_size: Few
    """Number of processes measured."""
    sizes: Many
    """Number of message sizes used in the fit."""
    worst_residual: Measured
    """Largest relative difference between a fitted and a measured time."""


class ExplainedShare(Schema):
    """One component of the original study's communication share, for one assumed pair of rates."""

    link_bytes_per_second: PerSecond
    """Assumed bytes per second between two of its GPUs."""
    utilisation: Amount
    """Assumed fraction of the vendor's peak reached by its matrix products."""
    tokens_per_pair: Many
    """Source and target tokens of a pair."""
    all_reduce_seconds: Elapsed
    """Time of an all-reduce of all gradients."""
    compute_seconds: Elapsed
    """Time of forward and backward."""
    share: Amount
    """All-reduce over the sum of both."""


class OriginalMachine(Schema):
    """The original study's setup in the same model: given numbers only, nothing measured."""

    parameters: Many
    """Weights of its model."""
    devices: Few
    """GPUs."""
    pairs: Many
    """Sentence pairs per step on each GPU."""
    peak_flops_per_second: PerSecond
    """Vendor's peak for each GPU."""
    reported_share: Proportion
    """The original study's reported fraction of GPU time in all-reduce and broadcast."""
    cases: list[ExplainedShare]
    """Cases that span the unknowns of the setup."""


class Projection(Schema):
    """results/projection/projection.json."""

    reason: str | None
    """Why there are no curves, if there are none."""
    compute: ComputeTimes | None
    """Timings that the curves are based on."""
    measured_link: MeasuredLink | None
    """The link between this machine's devices; null if not measured."""
    curves: list[ProjectedCurve]
    """Strategies, bucket sizes and links."""
    buckets: list[BestBucket]
    """The best bucket size by link and number of devices."""
    checks: list[ProjectionCheck]
    """All multi-process runs."""
    median_error: Measured | None
    """Median absolute error."""
    worst_error: Measured | None
    """Largest absolute error."""
    original: OriginalMachine
    """The original study's machine."""
