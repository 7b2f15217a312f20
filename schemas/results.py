"""The contract between the rooms: every file that one job writes and another reads.

Times are seconds, sizes bytes. A value that was not measured is null, never 0.
"""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.data import Sha256, Split
from schemas.equivalence import AnyEquivalence

Status = Literal["ok", "oom", "diverged", "unsupported", "failed"]


class LengthHistogram(Schema):
    """How many sentences have which length."""

    unit: Literal["characters", "tokens"]
    """What is counted."""
    source: dict[int, int]
    """Source sentences by length."""
    target: dict[int, int]
    """Target sentences by length."""


class SkippedPair(Schema):
    """One pair that the filter left out, as an example for the report."""

    reason: Literal["empty", "too_long", "invalid"]
    """Which rule left it out."""
    where: str
    """File and line."""
    text: str
    """The beginning of the offending text."""


class CorpusSplit(Schema):
    """results/data/<corpus>/pairs/<split>.json, beside <split>.arrow."""

    corpus: str
    """Name of the corpus."""
    split: Split
    """Which split."""
    files: list[str]
    """The files read, or the generator and its seed."""
    pairs_read: int
    """Pairs found."""
    pairs_kept: int
    """Pairs written to <split>.arrow."""
    skipped: dict[Literal["empty", "too_long", "invalid"], int]
    """Pairs left out, by reason."""
    examples: list[SkippedPair]
    """The first few pairs left out."""
    lengths: LengthHistogram
    """Lengths of the kept sentences in characters."""


class TokenizerReport(Schema):
    """results/data/<corpus>/tokenizer.report.json."""

    vocabulary: int
    """Tokens in the vocabulary, special ones included."""
    sample_pairs: int
    """Training pairs that the tokenizer was trained on."""
    seconds: float
    """Time that the training took."""
    sha256: Sha256
    """Checksum of tokenizer.json."""


class Shard(Schema):
    """One Arrow IPC file of a split."""

    file: str
    """File name, beside the manifest."""
    pairs: int
    """Sentence pairs in it."""
    source_tokens: int
    """Source tokens in it, without begin and end."""
    target_tokens: int
    """Target tokens in it, without begin and end."""
    bytes: int
    """Size of the file."""
    sha256: Sha256
    """Checksum of the file."""


class ShardManifest(Schema):
    """results/data/<corpus>/shards/<split>/manifest.json, written last: it validates the shards."""

    corpus: str
    """Name of the corpus."""
    split: Split
    """Which split."""
    pairs: int
    """Sentence pairs in all shards."""
    source_tokens: int
    """Source tokens in all shards, without begin and end."""
    target_tokens: int
    """Target tokens in all shards, without begin and end."""
    skipped_too_long: int
    """Pairs left out because of max_tokens."""
    examples: list[SkippedPair]
    """The first few pairs left out."""
    id_type: Literal["uint8", "uint16", "uint32"]
    """Smallest integer type that holds the vocabulary."""
    vocabulary: int
    """Size of the vocabulary, in tokens."""
    tokenizer_sha256: Sha256
    """Checksum of the tokenizer.json that encoded them."""
    lengths: LengthHistogram
    """Lengths of the kept sentences in tokens, without begin and end."""
    seconds: float
    """Time that tokenizing and writing took."""
    shards: list[Shard]
    """The files, in the order of the corpus."""


class Gpu(Schema):
    """One GPU as NVML describes it."""

    index: int
    """NVML index."""
    name: str
    """Product name."""
    memory_bytes: int
    """Memory of the device."""
    compute_capability: str | None
    """For example 9.0."""
    driver: str
    """Driver version."""
    power_limit_watts: float | None
    """Enforced power limit."""


class Hardware(Schema):
    """results/machine/hardware.json: the machine, read inside a job."""

    platform: str
    """Operating system and architecture."""
    cpu: str
    """Product name of the CPU."""
    cores: int
    """Cores this job may use."""
    logical_cpus: int
    """Logical CPUs of the host."""
    memory_bytes: int
    """Main memory of the host, or of its control group where that is smaller."""
    cpu_features: list[str]
    """Instruction sets that matter to training (avx512f, avx512_bf16, amx_bf16, ...)."""
    gpus: list[Gpu]
    """The GPUs, empty where there is none."""
    gpu_note: str | None
    """Why no GPU is listed, where none is."""
    allocator: str
    """C memory allocator of the process."""


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

    first_step: int
    """First optimizer step in it."""
    last_step: int
    """Last optimizer step in it."""
    seconds: float
    """Wall time, validation and checkpoints left out."""
    pairs: int
    """Sentence pairs over all ranks."""
    tokens: int
    """Non-padding source and target tokens over all ranks."""
    padded_tokens: int
    """Source and target tokens with padding over all ranks."""
    input_wait_seconds: float
    """Time the slowest rank waited for its batches."""


class Validation(Schema):
    """One validation loss."""

    step: int
    """Optimizer steps done."""
    loss: float | None
    """Mean cross-entropy per target token in nats, without label smoothing; null if not finite."""


class RankMemory(Schema):
    """Peak memory of one process."""

    rank: int
    """Global rank."""
    device: str
    """cpu, or cuda:<index>."""
    rss_bytes: int
    """Peak resident set of the process."""
    allocated_bytes: int | None
    """Peak of torch's CUDA allocator, allocated; null without CUDA."""
    reserved_bytes: int | None
    """Peak of torch's CUDA allocator, reserved; null without CUDA."""
    nvml_bytes: int | None
    """Device memory in use according to NVML at the end of training; null without CUDA."""


class Topology(Schema):
    """What the run ran on."""

    device: Literal["cpu", "cuda"]
    """Kind of device."""
    backend: Literal["gloo", "nccl"] | None
    """Process-group backend; null for a single process."""
    world_size: int
    """Processes."""
    local_world_size: int
    """Processes on a host."""
    nodes: int
    """Hosts."""
    threads_per_rank: int
    """CPU threads of each process."""


class Repeat(Schema):
    """results/runs/<variant>/repeat-<k>/metrics.json."""

    variant: str
    """Name of the variant."""
    repeat: int
    """Number of the repeat, from 1."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """What it ran on; null if it ended before it knew."""
    parameters: int | None
    """Trainable parameters of the model."""
    steps: int
    """Optimizer steps done."""
    resumed_at: list[int]
    """Steps at which it went on from a checkpoint; throughput leaves these windows out."""
    startup_seconds: float | None
    """From the start of the process to the first step."""
    warmup_seconds: float | None
    """Time of the warm-up steps, compilation included."""
    total_seconds: float
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


class EvaluationResult(Schema):
    """results/runs/<variant>/evaluation.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """How the evaluation, or the run before it, ended."""
    reason: str | None
    """Why it is not ok."""
    bleu: float | None
    """Corpus BLEU, 0 to 100."""
    chrf: float | None
    """chrF, 0 to 100."""
    signature: str | None
    """sacrebleu's signature of the BLEU score."""
    pairs: int
    """Sentences translated."""
    seconds: float | None
    """Time that decoding took."""
    samples: list[Translation]
    """A few translations."""


class Interval(Schema):
    """A median and its 95 % interval."""

    median: float
    """The median."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    samples: int
    """How many values it comes from."""


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
    padding_share: float | None
    """Share of padding in the batches, 0 to 1."""
    input_wait_share: float | None
    """Share of the timed windows spent waiting for input, 0 to 1."""
    validation_loss: float | None
    """Last validation loss of the first repeat."""
    peak_memory_bytes: int | None
    """Largest peak of any rank: reserved device memory on CUDA, resident set on CPU."""
    epoch_seconds: float | None
    """Time for one pass over the training split at the median throughput."""


class SeedTrajectory(Schema):
    """One short training, step by step."""

    seed: int
    """Seed of the initial weights and of the order of the batches."""
    initial_sha256: Sha256
    """Hash of the initial weights under their canonical names."""
    losses: list[float]
    """Training loss per target token in nats, all ranks, before the update of each step."""
    grad_norms: list[float | None]
    """Norm of the gradient before clipping; null where it overflowed and the step was skipped."""
    replica_differences: list[float] | None
    """Largest difference of a parameter between rank 0 and any other rank, after each step; null
    where there is one copy of the parameters."""


class Trajectory(Schema):
    """results/equivalence/trajectories/<name>/trajectory.json.

    Beside it, initial.safetensors and final.safetensors hold the weights of the first seed.
    """

    name: str
    """The variant, or reference."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """What it ran on; null if it is not ok."""
    seeds: list[SeedTrajectory]
    """A training per seed; none if it is not ok."""
    provenance: Provenance
    """Where this comes from."""


CertificateStatus = Literal[
    "equivalent", "not_equivalent", "different", "unsupported", "oom", "diverged", "failed"
]


class Deviation(Schema):
    """The largest difference from the reference in one quantity, and what is allowed."""

    quantity: Literal["loss", "grad_norm", "weights", "replicas", "final_loss"]
    """What is compared."""
    measured: float
    """The difference, relative but for replicas; of final_loss the end of the interval of the mean
    difference that is farther from 0."""
    bound: float
    """Largest difference allowed."""
    where: str
    """The step or tensor that has it."""

    @property
    def holds(self) -> bool:
        """Whether the difference is allowed."""
        return self.measured <= self.bound


class CertificateStep(Schema):
    """One step of the first seed, beside that of the reference."""

    step: int
    """Optimizer step, from 1."""
    loss: float
    """Training loss of the variant."""
    reference_loss: float
    """Training loss of the reference."""
    grad_norm: float | None
    """Gradient norm of the variant."""
    reference_grad_norm: float | None
    """Gradient norm of the reference."""


class Certificate(Schema):
    """results/equivalence/<variant>.json: whether a variant trains the same model."""

    variant: str
    """Name of the variant."""
    equivalence: AnyEquivalence
    """The class of the variant, with its bounds."""
    status: CertificateStatus
    """The verdict, or why there is none."""
    reason: str
    """The verdict in a sentence."""
    reference: str | None
    """The run that it was compared with; null if none is possible."""
    seeds: list[int]
    """Seeds of the compared trainings."""
    deviations: list[Deviation]
    """What was measured; empty where nothing could be compared."""
    left_out: list[str]
    """Tensors that are not compared, because the loss does not depend on them."""
    steps: list[CertificateStep]
    """The course of the first seed."""
    provenance: Provenance | None
    """Where the variant's training comes from; null if there was none."""


class Comparison(Schema):
    """A variant against the baseline."""

    variant: str
    """Name of the variant."""
    baseline: str
    """Name of the baseline."""
    speedup: Interval | None
    """Ratio of the throughputs, variant over baseline; null if either is not ok."""
    certificate: CertificateStatus
    """Whether the variant trains the same model as the reference."""
    counts: bool
    """Whether the ratio is a speed-up of the same training: both have their certificates."""
    note: str = Field(default="")
    """What a reader must know (waits for input, only one repeat, ...)."""
