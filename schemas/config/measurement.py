"""How runs are timed, compared, certified and profiled."""

from typing import Annotated, Any, Literal, get_args

from annotated_types import Unit
from pydantic import BeforeValidator, Field, model_validator

from schemas.base import (
    MOST_SECONDS,
    Count,
    Fraction,
    Name,
    Rate,
    Schema,
    Seconds,
    Size,
    Steps,
    StepsOrNone,
    not_less_than,
    refusal,
)
from schemas.config.parallel import Bandwidth, LinkModel
from schemas.config.training import AnySchedule
from schemas.errors import nearest


class LargestBatch(Schema):
    """The search for the largest batch that fits: doubling, then bisection.

    Every size is tried in fresh processes on batches of the corpus's longest sentences.
    """

    variants: list[Name] = Field(default_factory=list)  # variants of the study to search for
    limit: Size | None = None
    """Memory available to each process, in bytes or as text (2GiB): on a CPU all writable
    memory, on a GPU what torch's allocator may reserve. Null is the whole device, or an equal
    share of the host."""
    margin: Fraction = 0.05  # fraction of the limit that must stay free
    resolution: float = Field(default=0.02, ge=1e-4, le=0.5)
    """Largest gap between the answer and the size that fails, as a fraction of the answer; at
    least one pair per micro-batch of each device."""


class MemoryUse(Schema):
    """Memory measurements. Memory is predicted for all variants."""

    anatomy: bool = True  # measure how every variant uses memory: a few steps in separate processes
    largest_batch: LargestBatch = LargestBatch()
    """The search for the largest batch that fits, and its variants."""


class Profiling(Schema):
    """The profile of each variant: a separate short run, never the timed one."""

    profiler: Literal["auto", "nsys", "torch"] = "auto"
    """Nsight Systems or torch.profiler; auto uses Nsight Systems if it is installed and a CUDA
    device is available, otherwise torch.profiler."""
    warmup_steps: Annotated[int, Field(ge=1, le=100_000), Unit("steps")] = 3
    """Steps before the profiled ones."""
    steps: Annotated[int, Field(ge=1, le=1_000), Unit("steps")] = 3  # profiled steps


class Limits(Schema):
    """How thoroughly the limits of the machine are measured."""

    seconds: Annotated[float, Unit("seconds")] = Field(default=0.05, gt=0.0, le=3_600.0)
    """Seconds for the repetitions of each measurement; the best one counts."""
    largest_matrix: Annotated[int, Unit("elements")] = Field(default=8192, ge=256, le=131_072)
    """Largest side of the matrices whose products are timed; smaller if one product would take
    much longer than ``seconds``."""
    largest_array: Annotated[int, Unit("bytes")] = Field(default=2**40, ge=2**20, le=2**40)
    """Largest array whose copies give the bandwidth of memory, in bytes; four times the last cache
    is enough. The bandwidth of an array that fits into a cache is that of the cache."""
    smallest_message: Annotated[int, Unit("bytes")] = Field(default=4096, ge=512, le=2**40)
    """Smallest message of the collective operations, in bytes."""
    largest_message: Annotated[
        int, Field(ge=512, le=2**40), Unit("bytes"), not_less_than("smallest_message")
    ] = 16 * 2**20
    """Largest message of the collective operations, in bytes; sizes grow by a factor of 4."""


class Measurement(Schema):
    """The timed part of a run, the same for every repeat."""

    warmup_steps: StepsOrNone = 20
    """Initial steps, reported separately and excluded from the throughput."""
    window_steps: Steps = 10  # steps between two synchronized clock readings: one throughput sample


class LeastOnGpu(Schema):
    """Minimum settings for comparisons on GPUs. The host runs ahead of the device, so a window
    needs many steps to show the cost of reading the loss or waiting for input."""

    warmup_steps: Steps = 30
    """Initial steps of each side in each session, while kernels are loaded and chosen and clocks
    rise."""
    window_seconds: Annotated[float, Field(ge=1e-6, le=3_600.0), Unit("seconds")] = 1.0
    """Duration of the timed steps of a turn, in seconds."""
    window_steps: Steps = 20  # timed steps per turn
    lead_steps: Annotated[int, Field(ge=0, le=10_000), Unit("steps")] = 4
    """Untimed steps at the start of a turn: more than the number of prefetched batches, which
    are ready after a side has waited."""
    budget: Seconds = 90.0  # seconds for all sessions of a two-sided comparison


class Comparing(Schema):
    """How a variant is compared with its reference: both run at the same time, in separate
    processes, and take turns. Not part of the run spec: it does not affect training."""

    warmup_steps: Steps = 10
    """Initial steps of each side in each session, compilation included; reported separately. At
    least two are taken: the last ones determine the number of steps per turn. PowerSGD compresses
    from the third step on, whatever its start_step."""
    window_seconds: Annotated[float, Field(ge=1e-6, le=3_600.0), Unit("seconds")] = 0.02
    """Minimum duration of a side's steps in a turn, in seconds; each side takes as many steps as
    the reference needs for it. Many short windows are less affected by machine drift than a few
    long ones."""
    window_steps: Steps = 2  # minimum number of timed steps per turn
    lead_steps: Annotated[int, Field(ge=0, le=10_000), Unit("steps")] = 1
    """Untimed steps at the start of a turn, while caches and clocks still reflect the previous
    side."""
    lead_batch: Annotated[float, Field(gt=0.0, le=1.0), Unit("share of a batch")] = 0.0625
    """Batch size of an untimed step on a CPU, of at least two rows per device and micro-batch:
    enough to bring weights and code back into the caches. On GPUs always a whole batch: those
    prepared while a side waited must be used up."""
    on_gpu: LeastOnGpu = LeastOnGpu()  # minimum values of these settings on GPUs
    pairs: Annotated[int, Field(ge=5, le=100_000)] = 5  # minimum turns per side in a session
    sessions_least: Count = 5
    """Sessions of each comparison, each in fresh processes. A single one cannot show how much
    processes differ: its verdict is UNDECIDED. Two sessions give an interval of 12.7 times the
    error, five of 2.8 times (Student's t): several short ones tell more than two long ones."""
    sessions_most: Annotated[Count, not_less_than("sessions_least")] = 8
    """Maximum number of sessions, however wide the interval still is."""
    precision: Annotated[float, Field(ge=1e-6, lt=1.0)] = 0.01
    """A comparison is precise enough once twice the standard error of its ratio, from the
    windows alone, is below this."""
    budget: Seconds = 12.0
    """Seconds for all sessions of a two-sided comparison, including startup; proportionally more
    with more sides. Each session runs until it has spent its share or is precise enough; beyond
    sessions_least, none starts that would not finish in time."""
    together: Annotated[int, Field(ge=2, le=64)] = 2
    """Sides running at the same time: a reference and the variants that take turns with it. A
    larger number takes less time, as the reference is started and timed once for all and the
    same turns serve comparisons among the variants; all of them must fit into device memory. On a
    CPU the reference of n variants runs in about the square root of n processes."""
    margin: Fraction = 0.02
    """Ratios from 1 / (1 + margin) to 1 + margin are the SAME, if the whole interval lies
    within."""

    def on_gpus(self) -> "Comparing":
        """These settings, raised to the minimum for GPUs; untimed steps take whole batches."""
        least = {name: max(getattr(self, name), value) for name, value in self.on_gpu}
        return self.model_copy(update=least | {"lead_batch": 1.0})


class SelfTest(Schema):
    """How the comparison protocol is tested on this machine: results/self_test/report.json."""

    comparisons: Annotated[int, Field(ge=2, le=100_000)] = 40
    """Comparisons of each side with the reference."""
    planted: list[Fraction] = Field(default=[0.0, 0.03, 0.05, 0.10], min_length=1, max_length=100)
    """Sides of a session besides the reference: fractions by which their steps are deliberately
    slowed down. 0 is an equal side. A fraction may occur several times: more comparisons for
    the same sessions."""


class Quality(Schema):
    """Trains the baseline and the recommendation, in turns, until both reach the requested quality,
    either a BLEU or a validation loss: results/quality.json.

    Not part of the run spec: it does not affect other trainings.
    """

    bleu: Annotated[float, Field(gt=0.0, lt=100.0)] | None = None
    """Target BLEU on the validation split, 0 to 100; for translations."""
    loss: Annotated[float, Field(gt=0.0, le=1e3), Unit("nats per target token")] | None = Field(
        default=None, examples=[4.0]
    )
    """Target validation loss; for any task, and reached sooner than a useful BLEU."""
    every: Steps = 100  # steps per turn and evaluation, rounded down to a meeting of local_steps
    steps: Annotated[Steps, not_less_than("every")] = 2_000  # maximum steps of each training
    schedule: AnySchedule | None = None
    """Learning rate schedule over these steps; null for the study's schedule."""
    max_pairs: Annotated[int, Field(ge=10, le=100_000), Unit("pairs")] = 50
    """Validation pairs translated per evaluation, greedily, if a BLEU is requested."""
    also: list[str] = Field(default_factory=list)
    """Further variants of the study to train. For those that train a different model by design, this
    time is the only judgment."""
    budget: Seconds = 300.0
    """Seconds for all trainings and all evaluations. A turn that has started is finished."""

    @model_validator(mode="after")
    def _has_one_goal(self) -> "Quality":
        if (self.bleu is None) == (self.loss is None):
            given = "neither bleu nor loss" if self.bleu is None else "both bleu and loss"
            raise refusal(f"has {given}", "give one of them, such as bleu: 20 or loss: 4")
        return self


class Search(Schema):
    """The search for the fastest combination with a valid certificate: results/recommended.yaml.

    It starts with all techniques at once and with those that pay off individually, and continues
    with the combinations that all measurements so far make most likely to be the fastest.

    Not part of the run spec: it does not affect training.
    """

    budget: Seconds = 60.0
    """Seconds for the search's sessions and the final comparison; 0 disables the search. No
    session starts that would not finish in time."""
    largest: Annotated[int, Field(ge=1, le=64)] = 64  # maximum techniques in a combination
    together: Annotated[int, Field(ge=3, le=256)] = 9
    """Trainings that may run at the same time, taking turns. All of them must fit into device
    memory."""


class LinkCheck(Schema):
    """How the emulated link is checked against the real one: the same runs over both, in turns."""

    bandwidths: list[Bandwidth] = Field(default=[1e8, 3e8, 1e9], min_length=1, max_length=100)
    """Bits per second, or text such as 100Mbit/s."""


class Projecting(Schema):
    """How step times on more devices are projected from one device."""

    steps: Annotated[int, Field(ge=1, le=1_000), Unit("steps")] = 6
    """Steps whose parts are timed on every device, without communication."""
    warmup_steps: Steps = 3  # steps before them
    devices: Annotated[int, Field(ge=1, le=1_048_576)] = 1024
    """Maximum number of devices; the projection uses powers of two up to it."""
    links: dict[Name, LinkModel] = Field(
        default={
            "ethernet_1gbit": LinkModel(bandwidth=1e9, latency=50e-6),
            "ethernet_25gbit": LinkModel(bandwidth=25e9, latency=20e-6),
            "infiniband_400gbit": LinkModel(bandwidth=400e9, latency=5e-6),
        }
    )
    """Hypothetical links between the devices, by name, in addition to the measured one. These
    are assumed orders of magnitude: replace them with values for your links."""


REFERENCE = "reference"
"""Name of the run that certificates compare with: the study's model in one process, in 32-bit
floating point, with explicit attention, separate projections and an unfused optimizer."""

LOOKS = 2
"""Maximum number of looks at final losses before deciding: after some seeds, and if those are
inconclusive, after as many again."""


class Bitwise(Schema):
    """Identical numbers to the last bit: no computation changes."""

    kind: Literal["bitwise"]
    against: Name = "single"
    """Variant whose losses, gradient norms and final weights must be identical."""
    reason: str = "It changes no computation."  # reason for this class


class Tolerance(Schema):
    """The same sums in a different order: equal up to 32-bit rounding."""

    kind: Literal["tolerance"]
    loss: float = Field(default=1e-4, gt=0, le=1.0)
    """Largest relative difference of the training loss, at every step."""
    grad_norm: float = Field(default=1e-3, gt=0, le=1.0)
    """Largest relative difference of the gradient's norm, at every step."""
    weights: float = Field(default=0.05, gt=0, le=10.0)
    """Largest difference of a tensor of final weights, relative to its change during training
    (2-norms). Adam divides by the gradient's size, so rounding in an element with almost no
    gradient becomes a full-sized update: this bound is much wider than that of the loss."""
    gradient: float = Field(default=2e-3, gt=0, le=1.0)
    """Largest error of a gradient tensor relative to its norm, from the same weights and batch,
    at several steps. Rounding causes about 1e-6; a single ReLU whose input is 0 up to rounding
    and falls on the other side causes up to 1e-3."""
    update: float = Field(default=1e-3, gt=0, le=1.0)
    """Largest error in a tensor's change during a step, relative to the norm of the change, from
    the same gradients, at the checked steps of the timed run. If the change is small relative to
    the weights, their own rounding allows more."""
    reason: str = "The same sums in a different order: only rounding differs."
    """Reason for this class and these bounds."""


class Statistical(Schema):
    """Fewer bits or a lossy message: different numbers, the same course of training."""

    kind: Literal["statistical"]
    seeds: int = Field(default=3, ge=2, le=20)
    """Pairs of trainings to compare, each pair from the same weights and batches; twice as many
    if the first ones are inconclusive."""
    loss: float = Field(default=0.005, gt=0, le=1.0)
    """Margin of the smoothed final loss, relative to that of the reference. The interval of the
    mean difference over the seeds must lie within it, and be narrow enough to detect a
    difference of twice the margin with 95 % probability."""
    reason: str = "Fewer bits change every number, but must not change where training goes."
    """Reason for this class and this margin."""


class Different(Schema):
    """A different optimizer, batch or network: a different model by design. Its certificate only says
    whether it takes the steps that its own settings ask for."""

    kind: Literal["different"]
    reason: str = "It trains a different model by design: only its quality can be compared."
    """Why it is compared with no reference."""


EquivalenceKind = Literal["bitwise", "tolerance", "statistical", "different"]
ClassOfEquivalence = Annotated[
    Bitwise | Tolerance | Statistical | Different, Field(discriminator="kind")
]


def _from_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in get_args(EquivalenceKind):
        remedy = nearest(value, get_args(EquivalenceKind))
        raise refusal("is not a class of equivalence", remedy)
    return {"kind": value}


AnyEquivalence = Annotated[
    ClassOfEquivalence,
    BeforeValidator(_from_name, json_schema_input_type=EquivalenceKind | ClassOfEquivalence),
]
"""A class with its bounds, or its name alone for the default bounds."""


class Certification(Schema):
    """The short trainings that certificates compare.

    They use the study's model, data and batches, almost no dropout, and a constant learning rate:
    during a long warm-up the weights would hardly move, and any two variants would look alike.
    """

    steps: Annotated[int, Unit("steps")] = Field(default=8, ge=3, le=100_000)
    """Optimizer steps of each training."""
    learning_rate: Rate = 1e-3
    """Learning rate of every step, unless a variant changes the schedule itself."""
    budget: Annotated[float, Unit("seconds")] = Field(default=60.0, ge=0, le=MOST_SECONDS)
    """Time of a short run in seconds after which no further seed starts if the first ones are
    inconclusive; the certificate is then inconclusive."""
