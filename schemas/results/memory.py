"""Memory, measured and predicted: results/memory/."""

from typing import Literal

from schemas.base import Schema, StepsOrNone, Whole
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Few,
    Many,
    Proportion,
    SignedBytes,
    Status,
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
PARTS = (
    "weights_bytes",
    "master_weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "buckets_bytes",
    "communication_bytes",
    "activations_bytes",
    "temporary_bytes",
)
"""Parts of a rank's memory, in table order: the fields of :class:`Parts`."""


class BatchShape(Schema):
    """A rank's micro-batch with the largest memory need."""

    rows: Many
    """Rows: sentence pairs, or several of them packed into one."""
    source_tokens: Many
    """Tokens of a padded source row."""
    target_tokens: Many
    """Tokens of a padded target row."""


class Milestone(Schema):
    """The memory of a process at one moment of its life.

    ``start``: nothing used yet; ``first_kernel``: the device has run a kernel; ``weights``: the
    model exists; ``wrapped``: the parallel strategy wraps it; ``first_forward``,
    ``first_backward``, ``first_step``: after these; ``steady``: after the last step; ``peak``: the
    largest of all.
    """

    name: MilestoneName
    """The moment."""
    tensor_bytes: Bytes | None
    """Bytes allocated to tensors on the device by torch's allocator."""
    reserved_bytes: Bytes | None
    """Bytes reserved from the device by torch's CUDA allocator; null without CUDA."""
    rss_bytes: Bytes
    """Resident set of the process."""
    device_bytes: Bytes | None
    """Memory in use on the device by all processes, from NVML; null without CUDA."""
    process_bytes: Bytes | None
    """Device memory used by this process, from NVML; null without CUDA, and if NVML does not
    know the process (as inside most containers)."""


class Parts(Schema):
    """The memory of a rank by purpose, in bytes; each byte belongs to one part."""

    weights_bytes: Bytes
    """Weights that layers compute with: parameters, or 16-bit copies of them; this rank's shard
    with FSDP."""
    master_weights_bytes: Bytes
    """32-bit weights used only by the optimizer, because layers compute with copies."""
    gradients_bytes: Bytes
    """Gradients of the parameters."""
    optimizer_bytes: Bytes
    """Optimizer state."""
    buckets_bytes: Bytes
    """Memory that the strategy keeps between steps: DDP's buckets, compression errors. Gradients
    that are views into buckets count as gradients."""
    communication_bytes: Bytes
    """Messages: gathered weights and logits, gradients in transit, flattened tensors."""
    activations_bytes: Bytes
    """Tensors saved by the forward pass for the backward pass."""
    temporary_bytes: SignedBytes
    """All other live memory: work space, gradients of activations, tables, the batch."""

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, part) for part in PARTS)


class BytesPerParameter(Schema):
    """Bytes per trainable parameter of the whole model, as held by one rank."""

    weights: Amount
    """Weights that layers compute with."""
    master_weights: Amount
    """32-bit weights used only by the optimizer."""
    gradients: Amount
    """Gradients."""
    optimizer: Amount
    """Optimizer state."""
    buckets: Amount
    """Memory that the strategy keeps between steps."""
    model_state: Amount
    """Sum of weights, master weights, gradients and optimizer state: the total in the original
    study's formulas."""


class TimelinePoint(Schema):
    """A moment of one training step."""

    phase: Literal["forward", "backward", "update"]
    """Phase of the step."""
    position: Proportion
    """Fraction of the step's operations completed, 0 to 1."""
    parts: Parts
    """Live memory: the largest value since the previous point."""


class DeviceAccount(Schema):
    """NVML's number after the last step, broken down; the parts add up to it.

    All but the residual are measured: the residual is what remains after subtracting them.
    """

    nvml_bytes: Bytes
    """Device memory of this process: from NVML's number for the process, otherwise for the
    device minus what others used before."""
    context_bytes: SignedBytes
    """CUDA context and loaded kernels: use at the first kernel, excluding torch's allocator."""
    library_bytes: SignedBytes
    """Further memory taken by libraries outside torch's allocator: NCCL's channels and buffers."""
    slack_bytes: SignedBytes
    """Memory reserved but not allocated by torch's allocator at the peak."""
    tensor_bytes: Bytes
    """Memory allocated to tensors by torch's allocator at the peak."""
    residual_bytes: SignedBytes
    """NVML's number minus all of these."""


class RankAnatomy(Schema):
    """The memory of one device of one process."""

    rank: Few
    """Global rank."""
    device: str
    """cpu, or cuda:<index>."""
    batch: BatchShape
    """The micro-batch with the largest memory need."""
    milestones: list[Milestone]
    """Memory over the life of the process, in order."""
    anatomy: Parts | None
    """Each part at its own maximum during a step after the first ones; null if it cannot be
    tracked (several devices driven by one process)."""
    at_peak: Parts | None
    """The parts at the step's peak."""
    peak_tensor_bytes: Bytes
    """Most bytes allocated to tensors by torch's allocator during the step."""
    residual_bytes: SignedBytes | None
    """peak_tensor_bytes minus the parts at the peak: work space inside kernels, rounding."""
    saved_tensor_bytes: Bytes | None
    """Memory saved by autograd for the backward pass, counting each allocation once, excluding
    weights."""
    bytes_per_parameter: BytesPerParameter | None
    """The anatomy divided by the parameters of the whole model."""
    device_account: DeviceAccount | None
    """Breakdown of NVML's number; null without CUDA or NVML."""
    timeline: list[TimelinePoint]
    """Memory over the course of the step."""


class DecodingMemory(Schema):
    """Memory that beam search uses in addition to the weights, for one batch of test sentences."""

    sentences: Many
    """Sentences decoded together."""
    beam_size: Few
    """Hypotheses per sentence."""
    length: Many
    """Length limit of decoding, in tokens."""
    weights_bytes: Bytes
    """Weights."""
    functionality_bytes: Bytes
    """Most bytes allocated to tensors other than weights: encoder memory, cached keys and
    values, hypotheses, logits."""


class ForeignProcess(Schema):
    """Another process with memory on one of the run's devices."""

    device: str
    """cuda:<index>."""
    pid: Whole
    """Process id reported by NVML."""
    name: str | None
    """Its name; null if this process may not see it."""
    bytes: Bytes | None
    """Its memory on the device; null if NVML does not report it."""


class MemoryResult(Schema):
    """results/memory/<variant>.json: the memory of a few steps of a variant, in fresh processes."""

    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """Devices and processes used; null if the status is not ok."""
    parameters: Many | None
    """Trainable parameters of the whole model."""
    mixed_precision: bool
    """Whether layers compute with 16-bit copies of 32-bit weights."""
    steps: StepsOrNone
    """Steps of the run; the anatomy is that of the last."""
    ranks: list[RankAnatomy]
    """Every device of every rank; empty if the status is not ok."""
    decoding: DecodingMemory | None
    """Additional memory of translation; null if the ranks hold shards of the model, or if not
    ok."""
    foreign: list[ForeignProcess]
    """Other processes on the devices."""
    provenance: Provenance
    """Where this record comes from."""


class PredictedRank(Schema):
    """The predicted memory of one rank."""

    rank: Few
    """Global rank. Ranks with equal work are predicted once."""
    batch: BatchShape
    """The micro-batch with the largest memory need."""
    at_peak: Parts
    """The parts at the peak of a training step."""
    anatomy: Parts
    """Each part at its own maximum."""
    training_bytes: Bytes
    """Tensor bytes at the peak of a training step."""
    validation_bytes: Bytes
    """Tensor bytes at the peak of a validation between two steps."""

    @property
    def peak_bytes(self) -> int:
        """Tensor bytes at the peak of the run."""
        return max(self.training_bytes, self.validation_bytes)


class Prediction(Schema):
    """Predicted memory of a run spec, determined without running it."""

    variant: str
    """Name of the variant."""
    status: Literal["ok", "unsupported", "failed"]
    """Whether there is a prediction."""
    reason: str | None
    """Why there is no prediction, in a sentence."""
    device: Literal["cpu", "cuda"] | None
    """Kind of device that the prediction is for."""
    parameters: Many | None
    """Trainable parameters of the whole model."""
    ranks: list[PredictedRank]
    """Rank 0, plus rank 1 if the other ranks do different work."""
    context_bytes: SignedBytes | None
    """Device memory that a process uses before it has any tensor, measured on this machine: the
    resident set on a CPU, NVML's number on a GPU; null if it could not be measured."""
    capacity_bytes: Bytes | None
    """Memory of a device, or each process's share of the host's memory; null if unknown."""
    notes: list[str]
    """Caveats about the prediction."""
    seconds: Elapsed
    """Time that the prediction took."""

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

    predictions: list[Prediction]
    """The variants of the study, in its order."""


Purpose = Literal["search", "confirmation", "one_step_more"]
LimitKind = Literal["data_segment", "torch_allocator"]


class BatchTrial(Schema):
    """One size that was tried."""

    pairs: Many
    """Sentence pairs in the global batch."""
    purpose: Purpose
    """Why it was tried."""
    status: Status
    """Final status; oom is an answer."""
    reason: str | None
    """Why the status is not ok."""
    peak_bytes: Bytes | None
    """Largest memory of any process, counted the same way as the limit; null if not ok."""
    seconds: Elapsed
    """Time that the trial took."""


class LargestBatchResult(Schema):
    """results/memory/largest_batch/<variant>.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """ok if there is an answer; oom if not even the smallest batch fits."""
    reason: str | None
    """Why there is no answer, or what the limiting factor is."""
    limit_kind: LimitKind
    """Memory counted: everything that a process can write to (RLIMIT_DATA) on a CPU, the
    reservation of torch's CUDA allocator on a GPU."""
    limit_bytes: Bytes
    """Memory available to each process."""
    margin: Amount
    """Fraction of the limit kept free."""
    source_tokens: Many
    """Source sentence length in the tried batches, in tokens: the longest in the corpus."""
    target_tokens: Many
    """Target sentence length in the tried batches, in tokens: the longest in the corpus."""
    largest_pairs: Many | None
    """Sentence pairs in the largest global batch that fits; null without an answer."""
    step_pairs: Many | None
    """Increment in pairs that no longer fits; null without an answer."""
    confirmed: bool
    """Whether the largest batch ran a second time, in fresh processes, and the next larger one
    failed again."""
    trials: list[BatchTrial]
    """All sizes tried, in order."""
    provenance: Provenance
    """Where this record comes from."""

    @property
    def largest_tokens(self) -> int | None:
        """Source and target tokens of the largest global batch."""
        if self.largest_pairs is None:
            return None
        return self.largest_pairs * (self.source_tokens + self.target_tokens)
