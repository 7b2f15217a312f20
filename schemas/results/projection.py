"""Step times of more devices than there are: results/projection/."""

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


class ReadyGradient(Schema):
    """One parameter, in the order in which backward finishes their gradients."""

    bytes: Bytes
    """Size of the gradient."""
    seconds: Elapsed
    """From the start of backward until the gradient was there, median over the steps."""
    layer: Few | None
    """Number of the repeated layer that it belongs to; null outside of them."""


class ComputeTimes(Schema):
    """What a device does in a micro-batch while all devices of its host work, and none talks; of
    each moment, when the last of them reaches it."""

    variant: str
    """Variant whose work it is."""
    status: Status
    """How the measurement ended."""
    reason: str | None
    """Why there is none, where it is not ok."""
    micro_batches: Few
    """Micro-batches of a step."""
    forward_seconds: Elapsed | None
    """Forward of a micro-batch, median."""
    backward_seconds: Elapsed | None
    """Backward of a micro-batch, median."""
    update_seconds: Elapsed | None
    """Clipping and optimizer's step, median."""
    other_seconds: SignedSeconds | None
    """Rest of a step: its input, zeroed gradients."""
    gradients: list[ReadyGradient]
    """Every parameter."""
    source_tokens: Amount | None
    """Source tokens of a micro-batch on the device, padding included, mean."""
    target_tokens: Amount | None
    """The same of the target."""
    vocabulary: Many | None
    """Logits of a target token."""
    topology: Topology | None
    """Where it was measured."""
    provenance: Provenance | None
    """Where it comes from."""


class ComputeRecord(Schema):
    """results/projection/compute.json."""

    times: list[ComputeTimes]
    """One for each different work among the variants of several devices."""


ProjectedStrategy = Literal[
    "ddp", "ddp_no_overlap", "accumulation_sync", "accumulation_no_sync", "fsdp", "central"
]


class ProjectedPoint(Schema):
    """A step on some number of devices, each with the same work."""

    devices: Few
    """Number of devices."""
    step_seconds: Elapsed
    """Time of a step."""
    exposed_seconds: SignedSeconds
    """Communication that nothing hides."""
    efficiency: Amount
    """Throughput per device over that of one device alone, 0 to 1."""


class ProjectedCurve(Schema):
    """One strategy on one link, over the number of devices."""

    strategy: ProjectedStrategy
    """The strategy."""
    link: str
    """Name of the link; measured for that of the machine."""
    bucket_mb: Amount | None
    """Size of the gradient buckets in MiB; null where there are none."""
    points: list[ProjectedPoint]
    """From one device on."""
    knee: Few | None
    """Smallest number of devices at which communication takes more than half of the step; null if
    it never does."""


class TriedBucket(Schema):
    """A bucket size and its step."""

    bucket_mb: Amount
    """Size in MiB."""
    step_seconds: Elapsed
    """Time of a step with it."""


class BestBucket(Schema):
    """The bucket size with the shortest step of DistributedDataParallel."""

    link: str
    """Name of the link."""
    devices: Few
    """Number of devices."""
    bucket_mb: Amount
    """Size in MiB; the smallest of those that are equally good."""
    step_seconds: Elapsed
    """Time of a step with it."""
    default_step_seconds: Elapsed
    """Time of a step with buckets of 25 MiB."""
    tried: list[TriedBucket]
    """All sizes, from the smallest on."""


class ProjectionCheck(Schema):
    """A run of several processes, predicted and measured."""

    variant: str
    """Name of the variant."""
    devices: Few
    """Processes of the run."""
    link: str
    """The link that was assumed: measured, or the limited one of the run."""
    strategy: ProjectedStrategy | None = None
    """The strategy that it checks; null where the model has none for it."""
    predicted_seconds: Elapsed | None
    """Time of a step as the model has it; null where it has no model of the variant."""
    measured_seconds: Elapsed
    """Median time of a step."""
    error: Measured | None
    """Predicted over measured, less 1."""
    note: str
    """Why there is no prediction; empty where there is one."""


class MeasuredLink(Schema):
    """The link between the devices of the machine, from the times of its all-reduces."""

    bandwidth: PerSecond
    """Bits per second, fitted."""
    latency: SignedSeconds
    """Seconds, fitted."""
    world_size: Few
    """Processes that were measured."""
    sizes: Many
    """Message sizes that the fit rests on."""
    worst_residual: Measured
    """Largest relative difference of a fitted from a measured time."""


class ExplainedShare(Schema):
    """A part of the original study's share of communication, for one assumed pair of rates."""

    link_bytes_per_second: PerSecond
    """Bytes per second between two of its GPUs."""
    utilisation: Amount
    """Share of the vendor's peak that its matrix products reached."""
    tokens_per_pair: Many
    """Source and target tokens of a pair."""
    all_reduce_seconds: Elapsed
    """Time of an all-reduce of all gradients."""
    compute_seconds: Elapsed
    """Time of forward and backward."""
    share: Amount
    """All-reduce over the sum of both."""


class OriginalMachine(Schema):
    """The setting of the original study in the same model: given numbers only, nothing measured."""

    parameters: Many
    """Weights of its model."""
    devices: Few
    """GPUs."""
    pairs: Many
    """Sentence pairs of a step on a GPU."""
    peak_flops_per_second: PerSecond
    """Vendor's peak of a GPU."""
    reported_share: Proportion
    """What the original study saw of its GPUs' time in all-reduce and broadcast."""
    cases: list[ExplainedShare]
    """The range of what is not known of it."""


class Projection(Schema):
    """results/projection/projection.json."""

    reason: str | None
    """Why there are no curves, where there are none."""
    compute: ComputeTimes | None
    """What the curves rest on."""
    measured_link: MeasuredLink | None
    """The link between the devices of this machine; null where it was not measured."""
    curves: list[ProjectedCurve]
    """Strategies, bucket sizes and links."""
    buckets: list[BestBucket]
    """The best bucket size by link and number of devices."""
    checks: list[ProjectionCheck]
    """Every run of several processes that there is."""
    median_error: Measured | None
    """Median of the errors without their sign."""
    worst_error: Measured | None
    """Largest of them."""
    original: OriginalMachine
    """The original study's machine."""
