"""Where the memory goes: results/memory/."""

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
"""Parts of the memory of a rank, in the order of the tables: the fields of :class:`Parts`."""


class BatchShape(Schema):
    """The micro-batch that needs most memory of those that a rank gets."""

    rows: Many
    """Rows: sentence pairs, or several of them packed into one."""
    source_tokens: Many
    """Tokens of a padded source row."""
    target_tokens: Many
    """Tokens of a padded target row."""


class Milestone(Schema):
    """The memory of a process at one moment of its life.

    ``start``: nothing used yet; ``first_kernel``: the device has worked once; ``weights``: the
    model is there; ``wrapped``: the parallel strategy is around it; ``first_forward``,
    ``first_backward``, ``first_step``: after these; ``steady``: after the last step; ``peak``:
    the largest of all.
    """

    name: MilestoneName
    """Which moment."""
    tensor_bytes: Bytes | None
    """What torch's allocator has handed out for tensors on the device."""
    reserved_bytes: Bytes | None
    """What torch's CUDA allocator has taken from the device; null without CUDA."""
    rss_bytes: Bytes
    """Resident set of the process."""
    device_bytes: Bytes | None
    """Memory in use on the device by all processes, from NVML; null without CUDA."""
    process_bytes: Bytes | None
    """Memory in use on the device by this process, from NVML; null without CUDA, and where NVML
    does not know the process (inside most containers)."""


class Parts(Schema):
    """The memory of a rank by what it is for, in bytes; each byte belongs to one part."""

    weights_bytes: Bytes
    """Weights that layers compute with: parameters, or 16-bit copies of them; with FSDP the shard
    of this rank."""
    master_weights_bytes: Bytes
    """32-bit weights that only the optimizer works with, because layers compute with copies."""
    gradients_bytes: Bytes
    """Gradients of the parameters."""
    optimizer_bytes: Bytes
    """State of the optimizer."""
    buckets_bytes: Bytes
    """What the strategy keeps between steps: DDP's buckets, errors of a compression. Gradients
    that are views into buckets count as gradients."""
    communication_bytes: Bytes
    """Messages: gathered weights and logits, gradients on their way, flattened tensors."""
    activations_bytes: Bytes
    """What the forward pass keeps for the backward pass."""
    temporary_bytes: SignedBytes
    """Everything else that is alive: work space, gradients of activations, tables, the batch."""

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, part) for part in PARTS)


class BytesPerParameter(Schema):
    """Bytes for each trainable parameter of the whole model, as one rank holds them."""

    weights: Amount
    """Weights that layers compute with."""
    master_weights: Amount
    """32-bit weights that only the optimizer works with."""
    gradients: Amount
    """Gradients."""
    optimizer: Amount
    """State of the optimizer."""
    buckets: Amount
    """What the strategy keeps between steps."""
    model_state: Amount
    """The sum of weights, master weights, gradients and optimizer state: what the study's
    formulas count."""


class TimelinePoint(Schema):
    """A moment of one training step."""

    phase: Literal["forward", "backward", "update"]
    """What the step was doing."""
    position: Proportion
    """Operations done since the step began, as a share of all of the step, 0 to 1."""
    parts: Parts
    """What was alive: the largest moment since the point before."""


class DeviceAccount(Schema):
    """What NVML says after the last step, divided up; the parts add up to it.

    All but the residual are measured: what is left when they are taken away is the residual.
    """

    nvml_bytes: Bytes
    """What this process has on the device: by NVML for the process, else for the device without
    what others had there before."""
    context_bytes: SignedBytes
    """CUDA context and loaded kernels: at the first kernel, without torch's allocator."""
    library_bytes: SignedBytes
    """What libraries took meanwhile beside torch's allocator: NCCL's channels and buffers."""
    slack_bytes: SignedBytes
    """Reserved by torch's allocator and not handed out at the peak."""
    tensor_bytes: Bytes
    """Handed out by torch's allocator at the peak."""
    residual_bytes: SignedBytes
    """NVML's number without all of these."""


class RankAnatomy(Schema):
    """The memory of one device of one process."""

    rank: Few
    """Global rank."""
    device: str
    """cpu, or cuda:<index>."""
    batch: BatchShape
    """The micro-batch that needs most memory."""
    milestones: list[Milestone]
    """The memory over the life of the process, in order."""
    anatomy: Parts | None
    """Each part at its own largest during a step after the first ones; null where it cannot be
    followed (several devices driven by one process)."""
    at_peak: Parts | None
    """The parts at the moment of the step's largest total."""
    peak_tensor_bytes: Bytes
    """Largest number of bytes that torch's allocator had handed out during the step."""
    residual_bytes: SignedBytes | None
    """peak_tensor_bytes without the parts at the peak: work space inside kernels, rounding."""
    saved_tensor_bytes: Bytes | None
    """What autograd saved for the backward pass, each piece of memory once, weights left out."""
    bytes_per_parameter: BytesPerParameter | None
    """The anatomy over the parameters of the whole model."""
    device_account: DeviceAccount | None
    """The same in NVML's number; null without CUDA or NVML."""
    timeline: list[TimelinePoint]
    """The course of the step."""


class DecodingMemory(Schema):
    """What beam search holds beside the weights, for one batch of test sentences."""

    sentences: Many
    """Sentences decoded together."""
    beam_size: Few
    """Hypotheses of each."""
    length: Many
    """Tokens after which decoding was cut off."""
    weights_bytes: Bytes
    """Weights."""
    functionality_bytes: Bytes
    """Largest number of bytes handed out for tensors beside the weights: encoder memory, cached
    keys and values, hypotheses, logits."""


class ForeignProcess(Schema):
    """Another process that had memory on a device of the run."""

    device: str
    """cuda:<index>."""
    pid: Whole
    """Process id as NVML gives it."""
    name: str | None
    """Its name; null where this process may not see it."""
    bytes: Bytes | None
    """Its memory on the device; null where NVML does not tell."""


class MemoryResult(Schema):
    """results/memory/<variant>.json: the memory of a few steps of a variant, in fresh processes."""

    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """What it ran on; null if it is not ok."""
    parameters: Many | None
    """Trainable parameters of the whole model."""
    mixed_precision: bool
    """Whether layers compute with 16-bit copies of 32-bit weights."""
    steps: StepsOrNone
    """Steps of the run; the anatomy is that of the last."""
    ranks: list[RankAnatomy]
    """Every device of every rank; none if it is not ok."""
    decoding: DecodingMemory | None
    """What translation adds; null where the ranks hold shards of the model, or it is not ok."""
    foreign: list[ForeignProcess]
    """Other processes on the devices."""
    provenance: Provenance
    """Where this comes from."""
