"""Trainings and their captures: results/runs/, results/profiles/ and results/quality/."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.base import Schema, StepsOrNone
from schemas.config.data import Sha256
from schemas.config.parallel import LinkKind
from schemas.results.common import (
    BASELINE,
    BEST,
    Amount,
    Bytes,
    Elapsed,
    Ending,
    Extreme,
    Few,
    Interval,
    Loss,
    Many,
    Measured,
    PerSecond,
    Proportion,
    Score,
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
    attention: list[str]  # the operators that are attention kernels; empty for explicit attention
    update: list[str]  # operators on many tensors: a whole update (fused) or foreach
    compiled: bool  # whether any part of the model was compiled
    deterministic: bool  # whether torch was set to use deterministic algorithms
    allocator: str  # C allocator of the process, torch's CUDA allocator, settings
    threads: Few  # CPU threads of the process


class Provenance(Schema):
    """Where a result comes from: enough to reproduce it."""

    spec_sha256: Sha256  # hash of the run spec
    command: str  # the single command that reproduces this file
    commit: str | None  # git commit of the code, with -dirty if the tree differs
    started: str  # start of the run, ISO 8601 in UTC
    python: str  # version of Python
    packages: dict[str, str]  # versions of the packages that affect the result
    hardware: Hardware  # the machine of the run


class Window(Schema):
    """One throughput sample: a few steps between two synchronized clock readings."""

    first_step: StepsOrNone  # first optimizer step in it
    last_step: StepsOrNone  # last optimizer step in it
    seconds: Elapsed  # wall time, excluding validation and checkpoints
    pairs: Many  # sentence pairs over all ranks
    tokens: Many  # non-padding source and target tokens over all ranks
    padded_tokens: Many  # source and target tokens with padding over all ranks
    input_wait_seconds: Elapsed  # time that the slowest rank waited for its batches

    @property
    def step_seconds(self) -> float:
        return self.seconds / (self.last_step - self.first_step + 1)


class Validation(Schema):
    """One validation loss."""

    step: StepsOrNone  # optimizer steps completed
    loss: Loss | None  # nats per target token, without label smoothing; null if not finite


class RankMemory(Schema):
    """Peak memory of one process."""

    rank: Few  # global rank
    device: str  # cpu, or cuda:<index>
    rss_bytes: Bytes  # peak resident set of the process
    allocated_bytes: Bytes | None  # peak of torch's CUDA allocator, allocated; null without CUDA
    reserved_bytes: Bytes | None  # peak of torch's CUDA allocator, reserved; null without CUDA
    nvml_bytes: Bytes | None  # device memory in use at the end of training, from NVML

    @property
    def peak_bytes(self) -> int | None:
        """The relevant peak: reserved device memory on CUDA, resident set on CPU."""
        return self.reserved_bytes if self.device.startswith("cuda") else self.rss_bytes


class RankPlace(Schema):
    """Location of one process of a run."""

    rank: Few  # global rank
    local_rank: Few  # rank among the processes of its host
    node_rank: Few  # number of its host in the run
    host: str  # name of its host
    device: str  # cpu, or cuda:<index>


class LinkUse(Schema):
    """The limited link of a run."""

    kind: LinkKind  # how it was created: with network namespaces, or emulated
    bandwidth: PerSecond  # bits per second in each direction


class Topology(Schema):
    """Devices and processes of a run."""

    device: Literal["cpu", "cuda"]  # kind of device
    backend: Literal["gloo", "nccl"] | None  # process-group backend; null for a single process
    world_size: Few  # processes
    local_world_size: Few  # processes on a host
    nodes: Few  # hosts
    threads_per_rank: Few  # CPU threads of each process
    ranks: list[RankPlace] = Field(default=[])  # all processes, in rank order
    link: LinkUse | None = None  # the limited link between its hosts; null for unmodified links


class SpotCheck(Schema):
    """A random step of a timed run whose update was recomputed in 64 bits."""

    step: StepsOrNone  # optimizer step, from 1
    skipped: bool  # whether the gradient overflowed, so that there was no update
    update: Extreme  # largest relative error of a tensor's update on any rank, beyond rounding
    tensor: str  # tensor with that error; empty if there is none
    rate: Extreme  # relative error of the learning rate
    clipping: Extreme  # relative error of the gradient's norm after clipping; 0 if it is not known
    replicas: Extreme  # largest difference of a parameter between ranks


class Repeat(Ending):
    """results/runs/<variant>/repeat-<k>/metrics.json."""

    variant: str
    repeat: Few  # number of the repeat, from 1
    traceback: str | None
    topology: Topology | None  # devices and processes used; null if it ended before they were known
    parameters: Many | None  # trainable parameters of the model
    steps: StepsOrNone  # optimizer steps completed
    resumed_at: list[StepsOrNone]  # resumed from a checkpoint there; these windows do not count
    startup_seconds: Elapsed | None  # from the start of the process to the first step
    warmup_seconds: Elapsed | None  # time of the warm-up steps, compilation included
    compile_seconds: Elapsed | None = None  # to compile layers on the main rank
    checkpoint_seconds: Elapsed | None = None  # median pause of the training for a checkpoint
    replayed: Proportion | None = None  # share of the main rank's calls played from CUDA graphs
    total_seconds: Elapsed  # from the start of the process to its end; last session only
    windows: list[Window]  # the timed windows
    validations: list[Validation]  # validation losses, in order
    memory: list[RankMemory]  # peak memory by rank
    communication: dict[str, Any] | None  # the strategy's report of its traffic; last session only
    numerics: dict[str, Any] | None = None  # the precision's report: skipped steps, loss scale
    kernels: StepKernels | None = None  # of the last session's first step; null without warm-up
    spot_checks: list[SpotCheck] = Field(default=[])  # steps whose updates were checked
    provenance: Provenance

    @property
    def counted_steps(self) -> int:
        """Steps whose communication was counted: those since it last resumed."""
        return self.steps - max(self.resumed_at, default=0)


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

    source: str  # the sentence
    reference: str  # its human translation
    hypothesis: str  # the model's translation


class TextQuality(Schema):
    """How well a language model predicts the test split's texts, as laid out in rows."""

    loss: Loss  # mean cross-entropy per token in nats; text-end tokens are included
    perplexity: Amount | None  # the exponential of the loss; null if it overflows
    bits_per_byte: Amount  # all tokens' loss over UTF-8 bytes: compares across tokenizers
    tokens: Many  # tokens predicted
    bytes: Bytes  # bytes of the texts


class Continuation(Schema):
    """The beginning of a text of the test split, and its continuations."""

    prompt: str  # the model's prompt
    reference: str  # the actual continuation
    greedy: str  # the model's continuation, taking the most probable token at each position
    drawn: str  # the model's continuation with sampled tokens


class EvaluationResult(Ending):
    """results/runs/<variant>/evaluation.json: of the first repeat's model."""

    variant: str
    bleu: Score | None  # corpus BLEU, 0 to 100
    chrf: Score | None  # chrF, 0 to 100
    signature: str | None  # sacrebleu's signature of the BLEU score
    pairs: Many  # sentences translated, or rows of texts predicted
    seconds: Elapsed | None  # time that decoding took
    samples: list[Translation]  # a few translations
    texts: TextQuality | None = None  # of a language model; null for translation
    continuations: list[Continuation] = Field(default=[])  # of texts, by a language model


class VariantResult(Ending):
    """results/runs/<variant>/metrics.json: the repeats of a variant, summarized."""

    variant: str
    repeats: list[Repeat] = Field(min_length=1)  # every repeat
    tokens_per_second: Interval | None  # over all repeats' windows, without padding
    pairs_per_second: Interval | None  # over the windows of all repeats
    padding_share: Proportion | None  # fraction of padding in the batches, 0 to 1
    input_wait_share: Amount | None  # fraction of the timed windows spent waiting for input, 0 to 1
    validation_loss: Loss | None  # last validation loss of the first repeat
    peak_memory_bytes: Bytes | None  # reserved on CUDA, resident set on CPU; largest rank
    epoch_seconds: Elapsed | None  # a pass over the training split at median throughput

    @property
    def windows(self) -> list[Window]:
        return [window for repeat in self.repeats for window in repeat.windows]


class DdpTimes(Schema):
    """DistributedDataParallel's own timing of the last reduction of a step."""

    step: StepsOrNone  # optimizer step
    communication_seconds: Elapsed  # from the first bucket's start to the last one's end


class RankCapture(Schema):
    """One process of a capture."""

    rank: Few  # global rank
    files: list[str]
    """Raw files in the folder of this record, starting with the one that the breakdown reads: a Kineto
    trace (.json.gz) for Perfetto, or an SQLite export (.sqlite) and a report (.nsys-rep) for the
    Nsight Systems GUI."""
    step_seconds: list[Elapsed]  # host time of every profiled step; a GPU may lag behind
    ddp: list[DdpTimes]  # DistributedDataParallel's own timings of the profiled steps


class Capture(Ending):
    """results/profiles/<variant>/capture.json: a few profiled steps, in a separate run."""

    variant: str
    traceback: str | None
    profiler: Literal["nsys", "torch"] | None  # the profiler used; null if none recorded anything
    profiler_version: str | None  # version of the profiler; null if none recorded anything
    profiler_reason: str  # why this profiler was chosen, in a sentence
    topology: Topology | None  # devices and processes of the run; null if the status is not ok
    warmup_steps: StepsOrNone  # steps before the profiled ones
    first_step: StepsOrNone  # first profiled optimizer step
    last_step: StepsOrNone  # last profiled optimizer step
    ranks: list[RankCapture] = Field(default=[])  # in rank order; empty if not ok
    provenance: Provenance


class QualityLook(Schema):
    """The quality of a training after a number of steps."""

    step: Many  # steps completed
    seconds: Elapsed  # time of these steps, excluding quality evaluations
    loss: Loss  # mean cross-entropy of the validation split in nats per target token
    bleu: Score | None
    """BLEU of the first pairs of the validation split, translated greedily; null if a loss is
    requested."""


def reaching(looks: Sequence[QualityLook], loss: float) -> tuple[float, float] | None:
    """Steps and seconds at which the validation loss first falls to ``loss``, interpolated linearly;
    null if the first evaluation is already below it."""
    for before, after in pairwise(looks):
        if before.loss <= loss:
            break
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return (
                before.step + share * (after.step - before.step),
                before.seconds + share * (after.seconds - before.seconds),
            )
    return None


class QualitySide(Ending):
    """One of the trainings."""

    name: str  # ``baseline``, ``best`` for the recommendation, or a variant that the study asks for
    parts: list[str] = Field(min_length=1)  # variants whose changes it includes
    looks: list[QualityLook]  # the evaluations, in order
    arrived: QualityLook | None
    """First evaluation with the requested BLEU, or when the loss fell to the requested one,
    interpolated linearly between two evaluations."""
    time_ratio: Measured | None = None  # until it arrived, over that of the baseline
    samples: list[Translation]  # some translations of the last evaluation


class QualityResult(Schema):
    """results/quality.json: how long trainings take to reach the requested quality."""

    status: Literal["arrived", "not_arrived", "failed", "not_run"]
    """All arrived; not all, within the steps and time; one failed; nothing is recommended."""
    reason: str  # the status in a sentence
    bleu: Score | None  # the requested BLEU; null if a loss is requested
    loss: Loss | None = None  # the requested validation loss in nats per target token
    pairs: Few  # pairs translated at each evaluation; 0 if a loss is requested
    sides: list[QualitySide]  # baseline, recommendation if any, other variants
    time_ratio: Measured | None  # of the recommendation over the baseline
    seconds: Elapsed  # total time
    provenance: dict[str, Provenance]  # where this record comes from, by side

    @model_validator(mode="after")
    def _complete(self) -> "QualityResult":
        """The page shows the sides that the ratio compares, and the same samples of all."""
        arrived = [side.name for side in self.sides[:2] if side.arrived]
        if self.time_ratio is not None and arrived != [BASELINE, BEST]:
            raise ValueError("time_ratio needs first the side baseline, then best, both arrived")
        if len({len(side.samples) for side in self.sides if side.samples}) > 1:
            raise ValueError("needs as many samples of each side")
        return self
