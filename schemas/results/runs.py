"""Trainings and their captures: results/runs/, results/profiles/ and results/quality/."""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.config.data import Sha256
from schemas.config.parallel import LinkKind
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Extreme,
    Few,
    Interval,
    Loss,
    Many,
    Measured,
    PerSecond,
    Proportion,
    Score,
    SignedSeconds,
    Status,
)
from schemas.results.machine import Hardware


class StepKernels(Schema):
    """Kernels used in the first optimizer step, as seen from the main rank.

    Equal for two trainings that compute the same way, whatever their numbers.
    """

    operators: list[str]
    """Every torch operator called from this process's training thread, in forward, backward,
    communication and update, each with the number format of its first operand; sorted. Their
    names distinguish fused kernels from explicit ones."""
    attention: list[str]
    """The operators that are attention kernels; empty for explicit attention."""
    update: list[str]
    """The operators that work on many tensors at once, for optimizers and clipping: a whole
    update (fused) or one of its operations (foreach)."""
    compiled: bool
    """Whether any part of the model was compiled."""
    deterministic: bool
    """Whether torch was set to use deterministic algorithms."""
    allocator: str
    """C memory allocator of the process, and torch's CUDA allocator, with their settings."""
    threads: Few
    """CPU threads of the process."""


class Provenance(Schema):
    """Where a result comes from: enough to reproduce it."""

    spec_sha256: Sha256
    """Hash of the run spec."""
    command: str
    """The single command that reproduces this file."""
    commit: str | None
    """Git commit of the code, with -dirty if the tree differs."""
    started: str
    """Start of the run, ISO 8601 in UTC."""
    python: str
    """Version of Python."""
    packages: dict[str, str]
    """Versions of the packages that affect the result."""
    hardware: Hardware
    """The machine of the run."""


class Window(Schema):
    """One throughput sample: a few steps between two synchronised clock readings."""

    first_step: StepsOrNone
    """First optimizer step in it."""
    last_step: StepsOrNone
    """Last optimizer step in it."""
    seconds: Elapsed
    """Wall time, excluding validation and checkpoints."""
    pairs: Many
    """Sentence pairs over all ranks."""
    tokens: Many
    """Non-padding source and target tokens over all ranks."""
    padded_tokens: Many
    """Source and target tokens with padding over all ranks."""
    input_wait_seconds: Elapsed
    """Time that the slowest rank waited for its batches."""


class Validation(Schema):
    """One validation loss."""

    step: StepsOrNone
    """Optimizer steps completed."""
    loss: Loss | None
    """Mean cross-entropy per target token in nats, without label smoothing; null if not finite."""


class RankMemory(Schema):
    """Peak memory of one process."""

    rank: Few
    """Global rank."""
    device: str
    """cpu, or cuda:<index>."""
    rss_bytes: Bytes
    """Peak resident set of the process."""
    allocated_bytes: Bytes | None
    """Peak of torch's CUDA allocator, allocated; null without CUDA."""
    reserved_bytes: Bytes | None
    """Peak of torch's CUDA allocator, reserved; null without CUDA."""
    nvml_bytes: Bytes | None
    """Device memory in use at the end of training, from NVML; null without CUDA."""

    @property
    def peak_bytes(self) -> int | None:
        """The relevant peak: reserved device memory on CUDA, resident set on CPU."""
        return self.reserved_bytes if self.device.startswith("cuda") else self.rss_bytes


class RankPlace(Schema):
    """Location of one process of a run."""

    rank: Few
    """Global rank."""
    local_rank: Few
    """Rank among the processes of its host."""
    node_rank: Few
    """Number of its host in the run."""
    host: str
    """Name of its host."""
    device: str
    """cpu, or cuda:<index>."""


class LinkUse(Schema):
    """The limited link of a run."""

    kind: LinkKind
    """How it was created: with network namespaces, or emulated."""
    bandwidth: PerSecond
    """Bits per second in each direction."""


class Topology(Schema):
    """Devices and processes of a run."""

    device: Literal["cpu", "cuda"]
    """Kind of device."""
    backend: Literal["gloo", "nccl"] | None
    """Process-group backend; null for a single process."""
    world_size: Few
    """Processes."""
    local_world_size: Few
    """Processes on a host."""
    nodes: Few
    """Hosts."""
    threads_per_rank: Few
    """CPU threads of each process."""
    ranks: list[RankPlace] = Field(default_factory=list)
    """All processes, in rank order."""
    link: LinkUse | None = None
    """The limited link between its hosts; null for unmodified links."""


class SpotCheck(Schema):
    """A step of a timed run, chosen at random, whose update was computed once more in 64 bits."""

    step: StepsOrNone
    """Optimizer step, from 1."""
    skipped: bool
    """Whether the gradient overflowed, so that there was no update."""
    update: Extreme
    """Largest relative error of a tensor's update on any rank, beyond rounding."""
    tensor: str
    """Tensor with that error on the main rank."""
    rate: Extreme
    """Relative error of the learning rate."""
    clipping: Extreme
    """Relative error of the gradient's norm after clipping; 0 if it is not known."""
    replicas: Extreme
    """Largest difference of a parameter between ranks."""


class Repeat(Schema):
    """results/runs/<variant>/repeat-<k>/metrics.json."""

    variant: str
    """Name of the variant."""
    repeat: Few
    """Number of the repeat, from 1."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """Devices and processes used; null if it ended before they were known."""
    parameters: Many | None
    """Trainable parameters of the model."""
    steps: StepsOrNone
    """Optimizer steps completed."""
    resumed_at: list[StepsOrNone]
    """Steps at which it resumed from a checkpoint; throughput excludes these windows."""
    startup_seconds: Elapsed | None
    """From the start of the process to the first step."""
    warmup_seconds: Elapsed | None
    """Time of the warm-up steps, compilation included."""
    compile_seconds: Elapsed | None = None
    """Time to compile layers on the main rank; null if none are compiled."""
    replayed: Proportion | None = None
    """Fraction of the calls of layers on the main rank that played a recorded CUDA graph, over all
    steps; null if none are recorded."""
    total_seconds: Elapsed
    """From the start of the process to its end, for the last session if it was resumed."""
    windows: list[Window]
    """The timed windows."""
    validations: list[Validation]
    """Validation losses, in order."""
    memory: list[RankMemory]
    """Peak memory by rank."""
    communication: dict[str, Any] | None
    """The parallel strategy's report of its traffic (bucket sizes, reductions per step)."""
    numerics: dict[str, Any] | None = None
    """The precision's report (skipped steps, final loss scale); null if there is none."""
    kernels: StepKernels | None = None
    """Kernels of its first step; null if it resumed from a checkpoint or has no step."""
    spot_checks: list[SpotCheck] = Field(default_factory=list)
    """Steps whose updates were checked."""
    provenance: Provenance
    """Where this record comes from."""


STEP_COLUMNS: dict[str, str] = {
    "step": "int64: optimizer step, from 1",
    "epoch": "int64: pass over the corpus, from 0",
    "batch": "int64: global batch of the epoch, from 0",
    "learning_rate": "float64: learning rate that the schedule gives for the step",
    "loss": "float64, null where not read: training loss per target token in nats, all ranks",
    "grad_norm": "float64, null where not read: norm of the gradient before clipping",
    "pairs": "int64: sentence pairs, all ranks",
    "tokens": "int64: non-padding source and target tokens, all ranks",
    "padded_tokens": "int64: source and target tokens with padding, all ranks",
    "input_wait_seconds": "float64: time rank 0 waited for its batches",
}
"""Columns of results/runs/<variant>/repeat-<k>/steps.parquet."""


class Translation(Schema):
    """One sentence of the test split."""

    source: str
    """The sentence."""
    reference: str
    """Its human translation."""
    hypothesis: str
    """The model's translation."""


class TextQuality(Schema):
    """How well a language model predicts the test split's texts, as laid out in rows."""

    loss: Loss
    """Mean cross-entropy per token in nats; text-end tokens are included."""
    perplexity: Amount | None
    """The exponential of the loss; null if it overflows."""
    bits_per_byte: Amount
    """The loss of all tokens in bits, over the UTF-8 bytes of the texts. Comparable between
    tokenizers."""
    tokens: Many
    """Tokens predicted."""
    bytes: Bytes
    """Bytes of the texts."""


class Continuation(Schema):
    """The beginning of a text of the test split, and its continuations."""

    prompt: str
    """The model's prompt."""
    reference: str
    """The actual continuation."""
    greedy: str
    """The model's continuation, taking the most probable token at each position."""
    drawn: str
    """The model's continuation with sampled tokens."""


class EvaluationResult(Schema):
    """results/runs/<variant>/evaluation.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """Final status of the evaluation, or of the run before it."""
    reason: str | None
    """Why the status is not ok."""
    bleu: Score | None
    """Corpus BLEU, 0 to 100."""
    chrf: Score | None
    """chrF, 0 to 100."""
    signature: str | None
    """sacrebleu's signature of the BLEU score."""
    pairs: Many
    """Sentences translated, or rows of texts predicted."""
    seconds: Elapsed | None
    """Time that decoding took."""
    samples: list[Translation]
    """A few translations."""
    texts: TextQuality | None = None
    """Quality of a language model; null for translation, and if not ok."""
    continuations: list[Continuation] = Field(default_factory=list)
    """A few texts continued by a language model."""


class VariantResult(Schema):
    """results/runs/<variant>/metrics.json: the repeats and the evaluation of a variant."""

    variant: str
    """Name of the variant."""
    status: Status
    """ok if every repeat is; otherwise the first status that is not."""
    reason: str | None
    """Why the status is not ok."""
    repeats: list[Repeat]
    """Every repeat."""
    evaluation: EvaluationResult
    """BLEU and translations of the first repeat's model."""
    tokens_per_second: Interval | None
    """Throughput over the windows of all repeats, non-padding tokens; null if not ok."""
    pairs_per_second: Interval | None
    """Throughput over the windows of all repeats, sentence pairs; null if not ok."""
    padding_share: Proportion | None
    """Fraction of padding in the batches, 0 to 1."""
    input_wait_share: Amount | None
    """Fraction of the timed windows spent waiting for input, 0 to 1."""
    validation_loss: Loss | None
    """Last validation loss of the first repeat."""
    peak_memory_bytes: Bytes | None
    """Largest peak of any rank: reserved device memory on CUDA, resident set on CPU."""
    epoch_seconds: Elapsed | None
    """Time for one pass over the training split at the median throughput."""


class DdpTimes(Schema):
    """DistributedDataParallel's own timings of the last reduction of a step."""

    step: StepsOrNone
    """Optimizer step."""
    forward_seconds: Elapsed
    """Time of the forward pass."""
    backward_compute_seconds: Elapsed
    """From the start of backward until the last gradient is ready."""
    communication_seconds: Elapsed
    """From the start of the first bucket's reduction to the end of the last one's."""
    overlap_seconds: SignedSeconds
    """Communication time that overlaps the backward computation."""


class RankCapture(Schema):
    """One process of a capture."""

    rank: Few
    """Global rank."""
    files: list[str]
    """Raw files beside this record, starting with the one that the breakdown reads: a Kineto
    trace (.json.gz) for Perfetto, or an SQLite export (.sqlite) and a report (.nsys-rep) for the
    Nsight Systems GUI."""
    step_seconds: list[Elapsed]
    """Host time of every profiled step; a GPU may lag behind."""
    ddp: list[DdpTimes]
    """DistributedDataParallel's own timings of the profiled steps; empty for other strategies."""


class Capture(Schema):
    """results/profiles/<variant>/capture.json: a few profiled steps, in a separate run."""

    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed capture."""
    profiler: Literal["nsys", "torch"] | None
    """The profiler used; null if none recorded anything."""
    profiler_version: str | None
    """Version of the profiler; null if none recorded anything."""
    profiler_reason: str
    """Why this profiler was chosen, in a sentence."""
    topology: Topology | None
    """Devices and processes of the run; null if the status is not ok."""
    warmup_steps: StepsOrNone
    """Steps before the profiled ones."""
    first_step: StepsOrNone
    """First profiled optimizer step."""
    last_step: StepsOrNone
    """Last profiled optimizer step."""
    ranks: list[RankCapture] = Field(default_factory=list)
    """The processes in rank order; empty if the status is not ok."""
    provenance: Provenance
    """Where this record comes from."""


class QualityLook(Schema):
    """Translation quality of a training after a number of steps."""

    step: Many
    """Steps completed."""
    seconds: Elapsed
    """Time of these steps, excluding quality evaluations."""
    loss: Loss
    """Mean cross-entropy of the validation split in nats per target token."""
    bleu: Score
    """BLEU of the first pairs of the validation split, translated greedily."""


class QualitySide(Schema):
    """One of the trainings."""

    name: str
    """``baseline``, ``best`` for the recommendation, or a variant that the study asks for."""
    parts: list[str]
    """Variants whose changes it includes."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok."""
    looks: list[QualityLook]
    """The evaluations, in order."""
    arrived: QualityLook | None
    """The first evaluation with the requested BLEU; null if there is none."""
    time_ratio: Measured | None = None
    """Training time until it arrived over that of the baseline; null unless both did."""
    samples: list[Translation]
    """Some translations of the last evaluation."""


class QualityResult(Schema):
    """results/quality.json: how long trainings take to reach the requested translation
    quality."""

    status: Literal["arrived", "not_arrived", "failed", "not_run"]
    """All arrived; not all, within the steps and time; one failed; nothing is recommended."""
    reason: str
    """The status in a sentence."""
    bleu: Score
    """The requested BLEU."""
    pairs: Few
    """Pairs translated at each evaluation."""
    sides: list[QualitySide]
    """Baseline, recommendation if there is one, other variants; empty if nothing was run."""
    time_ratio: Measured | None
    """Training time until the recommendation arrived over that of the baseline; null unless both
    did."""
    seconds: Elapsed
    """Total time."""
    provenance: dict[str, Provenance]
    """Where this record comes from, by side."""
