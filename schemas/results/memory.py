"""How memory is used: results/memory/."""

from typing import Literal

from schemas.base import Schema, StepsOrNone, Whole
from schemas.results.common import Amount, Bytes, Few, Many, Proportion, SignedBytes, Status
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
