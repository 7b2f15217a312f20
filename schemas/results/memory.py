"""Memory and the time of a step, measured and predicted: results/memory/, links/ and projection/."""

from typing import Literal

from schemas.base import Schema, StepsOrNone, Whole
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
    SignedBytes,
    SignedSeconds,
)
from schemas.results.runs import Provenance, Topology

MilestoneName = Literal[
    "start",
    "first_kernel",
    "weights",
    "wrapped",
    "first_forward",
    "first_backward",
    "first_step",
    "steady",
    "peak",
]


class BatchShape(Schema):
    """A rank's micro-batch with the largest memory need."""

    rows: Many  # rows: sentence pairs, or several of them packed into one
    source_tokens: Many  # tokens of a padded source row
    target_tokens: Many  # tokens of a padded target row


class Milestone(Schema):
    """The memory of a process at one moment of its life.

    ``start``: nothing used yet; ``first_kernel``: the device has run a kernel; ``weights``: the
    model exists; ``wrapped``: the parallel strategy wraps it; ``first_forward``,
    ``first_backward``, ``first_step``: after these; ``steady``: after the last step; ``peak``: the
    largest of all.
    """

    name: MilestoneName  # the moment
    tensor_bytes: Bytes | None  # bytes allocated to tensors on the device by torch's allocator
    reserved_bytes: Bytes | None  # by torch's CUDA allocator; null without CUDA
    rss_bytes: Bytes  # resident set of the process
    device_bytes: Bytes | None  # of all processes, from NVML; null without CUDA
    process_bytes: Bytes | None  # of this process, from NVML; null if NVML lacks it


class Parts(Schema):
    """The memory of a rank by purpose, in bytes; each byte belongs to one part."""

    weights_bytes: Bytes  # parameters or their 16-bit copies, that layers compute with
    master_weights_bytes: Bytes  # 32-bit weights that only the optimizer uses
    gradients_bytes: Bytes  # gradients of the parameters
    optimizer_bytes: Bytes  # optimizer state
    buckets_bytes: Bytes  # kept by the strategy: DDP's buckets, compression errors
    communication_bytes: Bytes  # gathered weights, logits, gradients in transit
    activations_bytes: Bytes  # tensors saved by the forward pass for the backward pass
    temporary_bytes: SignedBytes  # all else: work space, gradients of activations, tables

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


PARTS = tuple(Parts.model_fields)  # in the order of tables


class BytesPerParameter(Schema):
    """Bytes per trainable parameter of the whole model, as held by one rank."""

    weights: Amount  # weights that layers compute with
    master_weights: Amount  # 32-bit weights used only by the optimizer
    gradients: Amount  # gradients
    optimizer: Amount  # optimizer state
    buckets: Amount  # memory that the strategy keeps between steps
    model_state: Amount  # the sum of all but buckets, as in the original study


class TimelinePoint(Schema):
    """A moment of one training step."""

    phase: Literal["forward", "backward", "update"]  # phase of the step
    position: Proportion  # fraction of the step's operations completed, 0 to 1
    parts: Parts  # live memory: the largest value since the previous point


class DeviceAccount(Schema):
    """NVML's number after the last step, broken down; the parts add up to it.

    All but the residual are measured: the residual is what remains after subtracting them.
    """

    nvml_bytes: Bytes  # this process's, or the device's minus what others used
    context_bytes: SignedBytes  # CUDA context and kernels, without torch's allocator
    library_bytes: SignedBytes  # outside torch's allocator: NCCL's buffers
    slack_bytes: SignedBytes  # memory reserved but not allocated by torch's allocator at the peak
    tensor_bytes: Bytes  # memory allocated to tensors by torch's allocator at the peak
    residual_bytes: SignedBytes  # NVML's number minus all of these


class RankAnatomy(Schema):
    """The memory of one device of one process."""

    rank: Few  # global rank
    device: str  # cpu, or cuda:<index>
    batch: BatchShape  # the micro-batch with the largest memory need
    milestones: list[Milestone]  # memory over the life of the process, in order
    anatomy: Parts | None  # each part at its own maximum during a step; null if unknown
    at_peak: Parts | None  # the parts at the step's peak
    peak_tensor_bytes: Bytes  # most bytes allocated to tensors by torch's allocator during the step
    residual_bytes: SignedBytes | None  # peak_tensor_bytes minus the parts at the peak
    bytes_per_parameter: BytesPerParameter | None  # anatomy over all parameters
    device_account: DeviceAccount | None  # breakdown of NVML's number; null without CUDA or NVML
    timeline: list[TimelinePoint]  # memory over the course of the step


class DecodingMemory(Schema):
    """Memory that beam search uses in addition to the weights, for one batch of test sentences."""

    sentences: Many  # sentences decoded together
    beam_size: Few  # hypotheses per sentence
    length: Many  # length limit of decoding, in tokens
    weights_bytes: Bytes  # weights
    functionality_bytes: Bytes  # most bytes of tensors other than weights


class ForeignProcess(Schema):
    """Another process with memory on one of the run's devices."""

    device: str  # cuda:<index>
    pid: Whole  # process id reported by NVML
    name: str | None  # its name; null if this process may not see it
    bytes: Bytes | None  # its memory on the device; null if NVML does not report it


class MemoryResult(Ending):
    """results/memory/<variant>.json: the memory of a few steps of a variant, in fresh processes."""

    variant: str
    traceback: str | None
    topology: Topology | None  # devices and processes used; null if the status is not ok
    parameters: Many | None  # trainable parameters of the whole model
    steps: StepsOrNone  # steps of the run; the anatomy is that of the last
    ranks: list[RankAnatomy]  # every device of every rank; empty if the status is not ok
    decoding: DecodingMemory | None
    """Null if ranks hold shards of the model, if nothing is translated, or if not ok."""
    foreign: list[ForeignProcess]  # other processes on the devices
    provenance: Provenance


class PredictedRank(Schema):
    """The predicted memory of one rank."""

    rank: Few  # global rank. Ranks with equal work are predicted once.
    batch: BatchShape  # the micro-batch with the largest memory need
    at_peak: Parts  # the parts at the peak of a training step
    anatomy: Parts  # each part at its own maximum
    training_bytes: Bytes  # tensor bytes at the peak of a training step
    validation_bytes: Bytes  # tensor bytes at the peak of a validation between two steps

    @property
    def peak_bytes(self) -> int:
        return max(self.training_bytes, self.validation_bytes)


class Prediction(Schema):
    """Predicted memory of a run spec, determined without running it."""

    variant: str
    status: Literal["ok", "unsupported", "failed"]  # whether there is a prediction
    reason: str | None  # why there is no prediction, in a sentence
    device: Literal["cpu", "cuda"] | None  # kind of device that the prediction is for
    parameters: Many | None  # trainable parameters of the whole model
    ranks: list[PredictedRank]  # rank 0, plus rank 1 if the other ranks do different work
    context_bytes: SignedBytes | None  # used before there is any tensor, as measured here
    capacity_bytes: Bytes | None  # of a device, or a process's share of the host's
    notes: list[str]  # caveats about the prediction
    seconds: Elapsed  # time that the prediction took

    @property
    def peak_bytes(self) -> int | None:
        """Peak tensor bytes of the heaviest rank; null without a prediction."""
        return max((rank.peak_bytes for rank in self.ranks), default=None)

    @property
    def process_bytes(self) -> int | None:
        """The same plus the context; null if either is unknown."""
        if self.peak_bytes is None or self.context_bytes is None:
            return None
        return self.peak_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the device has enough memory; null if unknown."""
        if self.process_bytes is None or self.capacity_bytes is None:
            return None
        return self.process_bytes <= self.capacity_bytes


class PredictedMemory(Schema):
    """results/memory/predicted.json."""

    predictions: list[Prediction]  # the variants of the study, in its order


Purpose = Literal["search", "confirmation", "one_step_more"]
LimitKind = Literal["data_segment", "torch_allocator"]


class BatchTrial(Ending):
    """One size that was tried."""

    pairs: Many  # sentence pairs in the global batch
    purpose: Purpose  # why it was tried
    peak_bytes: Bytes | None  # largest of any process, counted as the limit is
    seconds: Elapsed  # time that the trial took


class LargestBatchResult(Ending):
    """results/memory/largest_batch/<variant>.json."""

    variant: str
    limit_kind: LimitKind  # all that a process may write to, or what torch reserves
    limit_bytes: Bytes  # memory available to each process
    margin: Amount  # fraction of the limit kept free
    source_tokens: Many  # source length in the trials: the corpus's longest
    target_tokens: Many  # target length in the trials: the corpus's longest
    largest_pairs: Many | None  # in the largest global batch that fits
    step_pairs: Many | None  # increment in pairs that no longer fits; null without an answer
    confirmed: bool  # whether it fitted again in fresh processes, and one more did not
    trials: list[BatchTrial]  # all sizes tried, in order
    provenance: Provenance

    @property
    def largest_tokens(self) -> int | None:
        if self.largest_pairs is None:
            return None
        return self.largest_pairs * (self.source_tokens + self.target_tokens)


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
    nodes: Few  # number of hosts of these processes
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
