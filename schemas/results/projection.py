"""Projections to other links, and the emulated link against a real one."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Ending,
    Few,
    Many,
    Measured,
    PerSecond,
    Proportion,
    SignedSeconds,
)
from schemas.results.runs import Provenance, Topology


class LinkTrial(Ending):
    """One configuration, run over both links."""

    name: str  # name of the change to DistributedDataParallel
    bandwidth: PerSecond  # bits per second
    real_seconds: Elapsed | None  # median time of a step over the real link
    emulated_seconds: Elapsed | None  # median time of a step over the emulated link
    error: Measured | None  # emulated over real time, minus 1, from adjacent windows


class LinkError(Schema):
    """results/links/error.json: how far the emulated link is from the real one."""

    trials: list[LinkTrial]  # all configurations; no model parameter was fitted to any of them
    median_error: Measured | None  # median absolute error; null if none was measured
    worst_error: Measured | None  # largest absolute error


class ReadyGradient(Schema):
    """One parameter, in the order in which backward completes the gradients."""

    bytes: Bytes  # size of the gradient
    seconds: Elapsed  # from the start of backward until it is ready, median over steps
    layer: Few | None  # number of the repeated layer that it belongs to; null outside these layers


class ComputeTimes(Ending):
    """Timings of a device's micro-batch with all devices of its host working but not
    communicating; each moment is that at which the last device reaches it."""

    variant: str  # variant that does this work
    micro_batches: Few  # micro-batches of a step
    forward_seconds: Elapsed | None  # forward of a micro-batch, median
    backward_seconds: Elapsed | None  # backward of a micro-batch, median
    update_seconds: Elapsed | None  # clipping and optimizer's step, median
    other_seconds: SignedSeconds | None  # the rest of a step: input, zeroing gradients
    gradients: list[ReadyGradient]  # every parameter
    source_tokens: Amount | None  # mean per micro-batch, including padding
    target_tokens: Amount | None  # mean target tokens, likewise
    vocabulary: Many | None  # logits per target token
    topology: Topology | None  # devices and processes of the measurement
    provenance: Provenance | None


class ComputeRecord(Schema):
    """results/projection/compute.json."""

    times: list[ComputeTimes]  # one entry per distinct workload among the multi-device variants


ProjectedStrategy = Literal[
    "ddp", "ddp_no_overlap", "accumulation_sync", "accumulation_no_sync", "fsdp", "central"
]


class ProjectedPoint(Schema):
    """A step on a given number of devices, each with the same work."""

    devices: Few  # number of devices
    step_seconds: Elapsed  # time of a step
    exposed_seconds: SignedSeconds  # communication time that is not hidden
    efficiency: Amount  # throughput per device over that of a single device, 0 to 1


class ProjectedCurve(Schema):
    """One strategy on one link, by number of devices."""

    strategy: ProjectedStrategy  # the strategy
    link: str  # name of the link; measured for the machine's own link
    bucket_mb: Amount | None  # size of the gradient buckets in MiB; null if there are none
    points: list[ProjectedPoint]  # points from one device upwards
    knee: Few | None  # fewest devices at which communication takes over half of a step


class TriedBucket(Schema):
    """A bucket size and its step time."""

    bucket_mb: Amount  # size in MiB
    step_seconds: Elapsed  # time of a step with it


class BestBucket(Schema):
    """The bucket size with the shortest DistributedDataParallel step."""

    link: str  # name of the link
    devices: Few  # number of devices
    bucket_mb: Amount  # size in MiB; the smallest among equally good ones
    step_seconds: Elapsed  # time of a step with it
    default_step_seconds: Elapsed  # time of a step with buckets of 25 MiB
    tried: list[TriedBucket]  # all sizes, smallest first


class ProjectionCheck(Schema):
    """A multi-process run, predicted and measured."""

    variant: str
    devices: Few  # processes of the run
    link: str  # the assumed link: measured, or the run's limited one
    strategy: ProjectedStrategy | None = None  # null if the model does not cover it
    predicted_seconds: Elapsed | None  # of a step; null if not covered
    measured_seconds: Elapsed  # median time of a step
    error: Measured | None  # predicted over measured, minus 1
    note: str  # why there is no prediction; empty if there is one


class MeasuredLink(Schema):
    """The link between the machine's devices, fitted to its all-reduce times."""

    bandwidth: PerSecond  # bits per second, fitted
    latency: SignedSeconds  # seconds, fitted
    world_size: Few  # number of processes measured
    sizes: Many  # number of message sizes used in the fit
    worst_residual: Measured  # largest relative difference between a fitted and a measured time


class ExplainedShare(Schema):
    """One component of the original study's communication share, for one assumed pair of rates."""

    link_bytes_per_second: PerSecond  # assumed bytes per second between two of its GPUs
    utilisation: Amount  # assumed fraction of the vendor's peak reached by its matrix products
    tokens_per_pair: Many  # source and target tokens of a pair
    all_reduce_seconds: Elapsed  # time of an all-reduce of all gradients
    compute_seconds: Elapsed  # time of forward and backward
    share: Amount  # all-reduce over the sum of both


class OriginalMachine(Schema):
    """The original study's setup in the same model: given numbers only, nothing measured."""

    parameters: Many  # weights of its model
    devices: Few  # GPUs
    pairs: Many  # sentence pairs per step on each GPU
    peak_flops_per_second: PerSecond  # vendor's peak for each GPU
    reported_share: Proportion  # of GPU time in all-reduce and broadcast
    cases: list[ExplainedShare]  # cases that span the unknowns of the setup


class Projection(Schema):
    """results/projection/projection.json."""

    reason: str | None  # why there are no curves, if there are none
    compute: ComputeTimes | None  # timings that the curves are based on
    measured_link: MeasuredLink | None  # between this machine's devices
    curves: list[ProjectedCurve]  # strategies, bucket sizes and links
    buckets: list[BestBucket]  # the best bucket size by link and number of devices
    checks: list[ProjectionCheck]  # all multi-process runs
    median_error: Measured | None  # median absolute error
    worst_error: Measured | None  # largest absolute error
    original: OriginalMachine  # the original study's machine
