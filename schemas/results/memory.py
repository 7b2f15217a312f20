"""Where the memory goes: results/memory/."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Status
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
Purpose = Literal["search", "confirmation", "one_step_more"]
LimitKind = Literal["data_segment", "torch_allocator"]
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

    rows: int
    """Rows: sentence pairs, or several of them packed into one."""
    source_tokens: int
    """Tokens of a padded source row."""
    target_tokens: int
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
    tensor_bytes: int | None
    """What torch's allocator has handed out for tensors on the device."""
    reserved_bytes: int | None
    """What torch's CUDA allocator has taken from the device; null without CUDA."""
    rss_bytes: int
    """Resident set of the process."""
    device_bytes: int | None
    """Memory in use on the device by all processes, from NVML; null without CUDA."""
    process_bytes: int | None
    """Memory in use on the device by this process, from NVML; null without CUDA, and where NVML
    does not know the process (inside most containers)."""


class Parts(Schema):
    """The memory of a rank by what it is for, in bytes; each byte belongs to one part."""

    weights_bytes: int
    """Weights that layers compute with: parameters, or 16-bit copies of them; with FSDP the shard
    of this rank."""
    master_weights_bytes: int
    """32-bit weights that only the optimizer works with, because layers compute with copies."""
    gradients_bytes: int
    """Gradients of the parameters."""
    optimizer_bytes: int
    """State of the optimizer."""
    buckets_bytes: int
    """What the strategy keeps between steps: DDP's buckets, errors of a compression. Gradients
    that are views into buckets count as gradients."""
    communication_bytes: int
    """Messages: gathered weights and logits, gradients on their way, flattened tensors."""
    activations_bytes: int
    """What the forward pass keeps for the backward pass."""
    temporary_bytes: int
    """Everything else that is alive: work space, gradients of activations, tables, the batch."""

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, part) for part in PARTS)


class BytesPerParameter(Schema):
    """Bytes for each trainable parameter of the whole model, as one rank holds them."""

    weights: float
    """Weights that layers compute with."""
    master_weights: float
    """32-bit weights that only the optimizer works with."""
    gradients: float
    """Gradients."""
    optimizer: float
    """State of the optimizer."""
    buckets: float
    """What the strategy keeps between steps."""
    model_state: float
    """The sum of weights, master weights, gradients and optimizer state: what the study's
    formulas count."""


class TimelinePoint(Schema):
    """A moment of one training step."""

    phase: Literal["forward", "backward", "update"]
    """What the step was doing."""
    position: float
    """Operations done since the step began, as a share of all of the step, 0 to 1."""
    parts: Parts
    """What was alive: the largest moment since the point before."""


class DeviceAccount(Schema):
    """What NVML says after the last step, divided up; the parts add up to it.

    All but the residual are measured: what is left when they are taken away is the residual.
    """

    nvml_bytes: int
    """What this process has on the device: by NVML for the process, else for the device without
    what others had there before."""
    context_bytes: int
    """CUDA context and loaded kernels: at the first kernel, without torch's allocator."""
    library_bytes: int
    """What libraries took meanwhile beside torch's allocator: NCCL's channels and buffers."""
    slack_bytes: int
    """Reserved by torch's allocator and not handed out at the peak."""
    tensor_bytes: int
    """Handed out by torch's allocator at the peak."""
    residual_bytes: int
    """NVML's number without all of these."""


class RankAnatomy(Schema):
    """The memory of one device of one process."""

    rank: int
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
    peak_tensor_bytes: int
    """Largest number of bytes that torch's allocator had handed out during the step."""
    residual_bytes: int | None
    """peak_tensor_bytes without the parts at the peak: work space inside kernels, rounding."""
    saved_tensor_bytes: int | None
    """What autograd saved for the backward pass, each piece of memory once, weights left out."""
    bytes_per_parameter: BytesPerParameter | None
    """The anatomy over the parameters of the whole model."""
    device_account: DeviceAccount | None
    """The same in NVML's number; null without CUDA or NVML."""
    timeline: list[TimelinePoint]
    """The course of the step."""


class DecodingMemory(Schema):
    """What beam search holds beside the weights, for one batch of test sentences."""

    sentences: int
    """Sentences decoded together."""
    beam_size: int
    """Hypotheses of each."""
    length: int
    """Tokens after which decoding was cut off."""
    weights_bytes: int
    """Weights."""
    functionality_bytes: int
    """Largest number of bytes handed out for tensors beside the weights: encoder memory, cached
    keys and values, hypotheses, logits."""


class ForeignProcess(Schema):
    """Another process that had memory on a device of the run."""

    device: str
    """cuda:<index>."""
    pid: int
    """Process id as NVML gives it."""
    name: str | None
    """Its name; null where this process may not see it."""
    bytes: int | None
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
    parameters: int | None
    """Trainable parameters of the whole model."""
    mixed_precision: bool
    """Whether layers compute with 16-bit copies of 32-bit weights."""
    steps: int
    """Steps of the run; the anatomy is that of the last."""
    ranks: list[RankAnatomy]
    """Every device of every rank; none if it is not ok."""
    decoding: DecodingMemory | None
    """What translation adds; null where the ranks hold shards of the model, or it is not ok."""
    foreign: list[ForeignProcess]
    """Other processes on the devices."""
    provenance: Provenance
    """Where this comes from."""


class PredictedRank(Schema):
    """The predicted memory of one rank."""

    rank: int
    """Global rank. Ranks of equal work are predicted once."""
    batch: BatchShape
    """The micro-batch that needs most memory."""
    at_peak: Parts
    """The parts at the largest moment of a training step."""
    anatomy: Parts
    """Each part at its own largest."""
    training_bytes: int
    """Tensors at the largest moment of a training step."""
    validation_bytes: int
    """Tensors at the largest moment of a validation between two steps."""

    @property
    def peak_bytes(self) -> int:
        """Tensors at the largest moment of the run."""
        return max(self.training_bytes, self.validation_bytes)


class Prediction(Schema):
    """The memory that a run spec needs, found without running it."""

    variant: str
    """Name of the variant."""
    status: Literal["ok", "unsupported", "failed"]
    """Whether there is a prediction."""
    reason: str | None
    """Why there is none, in a sentence."""
    device: Literal["cpu", "cuda"] | None
    """Kind of device that it is for."""
    parameters: int | None
    """Trainable parameters of the whole model."""
    ranks: list[PredictedRank]
    """Rank 0, and rank 1 where the others do other work."""
    context_bytes: int | None
    """What a process takes on the device before it has a tensor, measured on this machine: the
    resident set on a CPU, NVML's number on a GPU; null where it could not be measured."""
    capacity_bytes: int | None
    """Memory of a device, or the share of the host's that a process has; null if unknown."""
    notes: list[str]
    """What a reader must know of the prediction."""
    seconds: float
    """Time that the prediction took."""

    @property
    def peak_bytes(self) -> int | None:
        """Tensors at the largest moment of the heaviest rank; null without a prediction."""
        return max((rank.peak_bytes for rank in self.ranks), default=None)

    @property
    def process_bytes(self) -> int | None:
        """The same with the context; null where either is unknown."""
        if self.peak_bytes is None or self.context_bytes is None:
            return None
        return self.peak_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the device has that much; null where it is not known."""
        if self.process_bytes is None or self.capacity_bytes is None:
            return None
        return self.process_bytes <= self.capacity_bytes


class PredictedMemory(Schema):
    """results/memory/predicted.json."""

    predictions: list[Prediction]
    """The variants of the study, in its order."""


class BatchTrial(Schema):
    """One size that was tried."""

    pairs: int
    """Sentence pairs in the global batch."""
    purpose: Purpose
    """Why it was tried."""
    status: Status
    """How it ended; oom is an answer."""
    reason: str | None
    """Why it is not ok."""
    peak_bytes: int | None
    """Largest memory of any process, counted as the limit counts; null if it is not ok."""
    seconds: float
    """Time that the trial took."""


class LargestBatchResult(Schema):
    """results/memory/largest_batch/<variant>.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """ok if there is an answer; oom if not even the smallest batch fits."""
    reason: str | None
    """Why there is no answer, or what limits it."""
    limit_kind: LimitKind
    """What counts: everything that a process can write to (RLIMIT_DATA) on a CPU, what torch's
    CUDA allocator reserves on a GPU."""
    limit_bytes: int
    """Memory that each process may have."""
    margin: float
    """Share of the limit that was kept free."""
    source_tokens: int
    """Tokens of a source sentence of the tried batches: the longest of the corpus."""
    target_tokens: int
    """Tokens of a target sentence of the tried batches: the longest of the corpus."""
    largest_pairs: int | None
    """Sentence pairs of the largest global batch that fits; null without an answer."""
    step_pairs: int | None
    """So many pairs more do not fit; null without an answer."""
    confirmed: bool
    """Whether the largest batch ran a second time, in fresh processes, and the one a step larger
    failed again."""
    trials: list[BatchTrial]
    """Every size that was tried, in order."""
    provenance: Provenance
    """Where this comes from."""

    @property
    def largest_tokens(self) -> int | None:
        """Source and target tokens of the largest global batch."""
        if self.largest_pairs is None:
            return None
        return self.largest_pairs * (self.source_tokens + self.target_tokens)
