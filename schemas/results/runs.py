"""Runs, their evaluation, and a variant as a whole: results/runs/."""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.config.corpus import Sha256
from schemas.config.link import LinkKind
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Few,
    Interval,
    Loss,
    Many,
    PerSecond,
    Proportion,
    Score,
    Status,
)
from schemas.results.kernels import StepKernels
from schemas.results.machine import Hardware


class Provenance(Schema):
    """Where a number comes from: enough to make it again."""

    spec_sha256: Sha256
    """Hash of the run spec."""
    command: str
    """The one command that makes this file again."""
    commit: str | None
    """Git commit of the code, with -dirty where the tree differs."""
    started: str
    """Start of the run, ISO 8601 in UTC."""
    python: str
    """Version of Python."""
    packages: dict[str, str]
    """Versions of the packages that shape the result."""
    hardware: Hardware
    """The machine of the run."""


class Window(Schema):
    """One sample of the throughput: a few steps between two synchronised clock readings."""

    first_step: StepsOrNone
    """First optimizer step in it."""
    last_step: StepsOrNone
    """Last optimizer step in it."""
    seconds: Elapsed
    """Wall time, validation and checkpoints left out."""
    pairs: Many
    """Sentence pairs over all ranks."""
    tokens: Many
    """Non-padding source and target tokens over all ranks."""
    padded_tokens: Many
    """Source and target tokens with padding over all ranks."""
    input_wait_seconds: Elapsed
    """Time the slowest rank waited for its batches."""


class Validation(Schema):
    """One validation loss."""

    step: StepsOrNone
    """Optimizer steps done."""
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
    """Device memory in use according to NVML at the end of training; null without CUDA."""

    @property
    def peak_bytes(self) -> int | None:
        """The peak that counts: reserved device memory on CUDA, resident set on CPU."""
        return self.reserved_bytes if self.device.startswith("cuda") else self.rss_bytes


class RankPlace(Schema):
    """Where one process of a run is."""

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
    """How it was made: with network namespaces, or emulated."""
    bandwidth: PerSecond
    """Bits per second in each direction."""


class Topology(Schema):
    """What the run ran on."""

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
    """Every process, in the order of ranks."""
    link: LinkUse | None = None
    """The limited link between its hosts; null for links as they are."""


class Repeat(Schema):
    """results/runs/<variant>/repeat-<k>/metrics.json."""

    variant: str
    """Name of the variant."""
    repeat: Few
    """Number of the repeat, from 1."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """What it ran on; null if it ended before it knew."""
    parameters: Many | None
    """Trainable parameters of the model."""
    steps: StepsOrNone
    """Optimizer steps done."""
    resumed_at: list[StepsOrNone]
    """Steps at which it went on from a checkpoint; throughput leaves these windows out."""
    startup_seconds: Elapsed | None
    """From the start of the process to the first step."""
    warmup_seconds: Elapsed | None
    """Time of the warm-up steps, compilation included."""
    compile_seconds: Elapsed | None = None
    """What compiling layers took on the main rank; null where none are compiled."""
    total_seconds: Elapsed
    """From the start of the process to its end, of the last session if it was resumed."""
    windows: list[Window]
    """The timed windows."""
    validations: list[Validation]
    """Validation losses, in order."""
    memory: list[RankMemory]
    """Peak memory by rank."""
    communication: dict[str, Any] | None
    """What the parallel strategy tells of its traffic (bucket sizes, reductions per step)."""
    numerics: dict[str, Any] | None = None
    """What the precision tells (skipped steps, final loss scale); null where there is nothing."""
    kernels: StepKernels | None = None
    """What computed its first step; null where it went on from a checkpoint or has no step."""
    provenance: Provenance
    """Where this comes from."""


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
    """How well a language model predicts the texts of the test split, as they stand in rows."""

    loss: Loss
    """Mean cross-entropy per token in nats; ends of texts are tokens, too."""
    perplexity: Amount | None
    """The exponential of the loss; null where it is beyond any number."""
    bits_per_byte: Amount
    """The loss of all tokens in bits, over the bytes of the texts in UTF-8. It compares with that
    of other tokenizers."""
    tokens: Many
    """Tokens predicted."""
    bytes: Bytes
    """Bytes of the texts."""


class Continuation(Schema):
    """The beginning of a text of the test split, and how it goes on."""

    prompt: str
    """What the model was given."""
    reference: str
    """How the text goes on."""
    greedy: str
    """How the model goes on, with the most probable token at each place."""
    drawn: str
    """How it goes on where tokens are drawn."""


class EvaluationResult(Schema):
    """results/runs/<variant>/evaluation.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """How the evaluation, or the run before it, ended."""
    reason: str | None
    """Why it is not ok."""
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
    """The quality of a language model; null for a translation, and if not ok."""
    continuations: list[Continuation] = Field(default_factory=list)
    """A few texts that a language model goes on with."""


class VariantResult(Schema):
    """results/runs/<variant>/metrics.json: the repeats and the evaluation of a variant."""

    variant: str
    """Name of the variant."""
    status: Status
    """ok if every repeat is; else the first status that is not."""
    reason: str | None
    """Why it is not ok."""
    repeats: list[Repeat]
    """Every repeat."""
    evaluation: EvaluationResult
    """BLEU and translations of the first repeat's model."""
    tokens_per_second: Interval | None
    """Throughput over the windows of all repeats, non-padding tokens; null if not ok."""
    pairs_per_second: Interval | None
    """Throughput over the windows of all repeats, sentence pairs; null if not ok."""
    padding_share: Proportion | None
    """Share of padding in the batches, 0 to 1."""
    input_wait_share: Amount | None
    """Share of the timed windows spent waiting for input, 0 to 1."""
    validation_loss: Loss | None
    """Last validation loss of the first repeat."""
    peak_memory_bytes: Bytes | None
    """Largest peak of any rank: reserved device memory on CUDA, resident set on CPU."""
    epoch_seconds: Elapsed | None
    """Time for one pass over the training split at the median throughput."""
