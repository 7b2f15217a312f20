"""Comparisons and the test of their protocol: results/turns/, comparisons.json, self_test/."""

from math import ceil
from typing import Literal, NamedTuple

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.config.measurement import Comparing
from schemas.results.certificates import CertificateStatus
from schemas.results.common import (
    Amount,
    Bytes,
    Celsius,
    Elapsed,
    Few,
    Interval,
    Joules,
    Many,
    Measured,
    Megahertz,
    PerSecond,
    Proportion,
    Quantity,
    SignedSeconds,
    Status,
    Watts,
)
from schemas.results.runs import Provenance, StepKernels, Topology


class Stint(Schema):
    """Sessions added to comparisons in one batch, before their verdicts were checked again."""

    reference: str
    """The common reference."""
    variants: list[str]
    """The variants that took turns with it."""
    sessions: Few
    """Number of sessions added."""
    seconds: Elapsed
    """Time that they took."""
    reason: str = ""
    """Why it ended early, if a side could not continue."""


class Unsettled(Schema):
    """An undecided comparison, and what would settle it."""

    variant: str
    """Name of the variant."""
    reference: str
    """Name of the reference."""
    seconds: Elapsed | None
    """Approximate additional measuring time, if the ratio is where it appears to be; null if
    more time does not help."""
    reason: str = ""
    """Why more time does not help."""


class Refinement(Schema):
    """How the study's time limit (its field ``time``) was used."""

    asked_seconds: Elapsed
    """Time limit of the study."""
    began_at_seconds: Elapsed
    """Time spent before the comparisons continued."""
    kept_seconds: Elapsed
    """Time reserved for later jobs: verdicts, the search, the report."""
    ended_at_seconds: Elapsed
    """Time spent by the end of the last comparison."""
    stints: list[Stint]
    """Batches added by this job; earlier sessions are kept."""
    unsettled: list[Unsettled]
    """Undecided comparisons, soonest to be settled first."""

    def next_seconds(self, spent: float) -> float:
        """A time limit, in whole minutes, that would probably settle one more comparison, given
        the seconds already spent; twice the current limit if none is known to."""
        times = [one.seconds for one in self.unsettled if one.seconds is not None]
        more = min(times, default=self.asked_seconds)
        return 60.0 * ceil((max(self.asked_seconds, spent + self.kept_seconds) + more) / 60)


Verdict = Literal["FASTER", "SLOWER", "LESS", "MORE", "SAME", "UNDECIDED"]


class Pair(NamedTuple):
    """A comparison: variant over reference, in this order everywhere."""

    variant: str
    reference: str

    def __str__(self) -> str:
        """Returns <variant>/<reference>, which is also the location of its record in a folder."""
        return f"{self.variant}/{self.reference}"


class LogRatio(NamedTuple):
    """Logarithm of a ratio, variant over reference, from one session."""

    variant: str
    reference: str
    estimate: float
    error: float
    """Standard error from the session's windows alone, without differences between processes. 0
    for counts."""
    freedom: int
    """Degrees of freedom of the error."""
    pairs: int
    """Pairs of windows."""


class Probe(Schema):
    """Speed of a device at one moment, at two tasks unrelated to training."""

    device: str
    """cpu, or cuda:<index>."""
    matmul_flops_per_second: PerSecond
    """Rate of a product of two square matrices of 32-bit numbers."""
    copy_bytes_per_second: PerSecond
    """Rate of a copy within the memory of the device, bytes read plus bytes written."""


class GpuState(Schema):
    """State of a GPU at one moment according to NVML; null for anything it does not report."""

    index: Few
    """NVML index."""
    clock_megahertz: Megahertz | None
    """Clock of the multiprocessors."""
    memory_clock_megahertz: Megahertz | None
    """Clock of the memory."""
    celsius: Celsius | None
    """Temperature."""
    watts: Watts | None
    """Power draw."""
    throttled: list[str] | None
    """Reasons why the clocks are limited (power cap, heat); empty if they are not."""


class GpuWork(Schema):
    """Work of a GPU over some time, of all its processes; null for anything NVML does not count."""

    index: Few
    """NVML index."""
    joules: Joules | None
    """Energy."""
    power_held_seconds: Elapsed | None
    """Time for which the limit of its power held its clocks down."""
    heat_held_seconds: Elapsed | None
    """Time for which its temperature held its clocks down."""


class MachineState(Schema):
    """State of the machine at one moment with no training active; null for anything unknown."""

    probes: list[Probe]
    """Speed of the devices; empty if a session ended before it could be measured."""
    cpu_megahertz: Megahertz | None
    """Mean clock of the CPU's cores."""
    cpu_celsius: Celsius | None
    """Highest reading of the CPU's temperature sensors."""
    load_average: Amount | None
    """Mean number of runnable processes on the host in the last minute."""
    gpus: list[GpuState]
    """The GPUs of the host."""


class TurnWindow(Schema):
    """A few steps of one side, between two synchronised clock readings, while the others wait."""

    side: str
    """Name of the side."""
    began: SignedSeconds
    """Seconds since the session began."""
    seconds: Elapsed
    """Wall time."""
    steps: StepsOrNone
    """Optimizer steps."""
    tokens: Many
    """Non-padding source and target tokens over all ranks."""
    padded_tokens: Many
    """Source and target tokens with padding over all ranks."""
    input_wait_seconds: Elapsed
    """Time that the slowest rank waited for its batches."""


class Round(Schema):
    """One window of every side, in immediate succession."""

    windows: list[TurnWindow]
    """The windows in order of time."""
    gpus: list[GpuWork] = Field(default_factory=list)
    """The GPUs of the host during it; empty on a host without any."""


class Side(Schema):
    """The processes of one side in one session."""

    name: str
    """Name of the side: its variant, or another name for the same run spec."""
    planted: Amount = 0.0
    """Fraction by which its steps are deliberately slowed down, to test the protocol itself."""
    topology: Topology | None
    """Devices and processes used; null if it ended before they were known."""
    startup_seconds: Elapsed | None
    """From the start of the processes until they were ready for the first step."""
    warmup_seconds: Elapsed | None
    """Time of the warm-up steps, compilation included."""
    peak_memory_bytes: Bytes | None
    """Largest peak of any rank at the end: reserved device memory on CUDA, resident set on CPU."""
    kernels: StepKernels | None = None
    """Kernels of its first step, which belongs to the warm-up; null if not recorded."""


class Session(Schema):
    """Fresh processes of all sides, which take turns.

    A session-<k>.json file holds one session until all comparisons of a job are complete.
    """

    number: Few
    """Number of the session, from 1."""
    started: str
    """Start, ISO 8601 in UTC."""
    seconds: Elapsed
    """From the start of the processes to their end."""
    sides: list[Side]
    """The sides, the reference first."""
    rounds: list[Round]
    """The timed rounds."""
    ratios: list[LogRatio] = Field(default_factory=list)
    """Throughput of each side over each side before it; empty in records of earlier versions."""
    before: MachineState
    """The machine before the warm-up, with all sides ready and waiting."""
    after: MachineState
    """The machine after the last round."""
    foreign_cpu_seconds: SignedSeconds | None
    """CPU time used by other processes of the host during the rounds."""
    rounds_seconds: Elapsed
    """Time of all rounds."""

    def ratio(self, pair: Pair) -> LogRatio:
        """The ratio of two of the sides. Raises KeyError if the session does not have it."""
        for found in self.ratios:
            if (found.variant, found.reference) == pair:
                return found
            if (found.reference, found.variant) == pair:
                return found._replace(
                    variant=found.reference, reference=found.variant, estimate=-found.estimate
                )
        raise KeyError(f"session {self.number} has no ratio of {pair}")


class PairedRun(Schema):
    """results/turns/<group>/<variant>/<reference>.json: two run specs, timed in turns. If the
    study has a time limit, results/refined/<variant>/<reference>.json also includes sessions
    added since."""

    reference: str
    """Name of the reference."""
    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed side."""
    ended_by: str | None
    """The side whose status is not ok; null if both are ok."""
    sessions: list[Session]
    """All sessions, in order, without the windows of other variants; empty if the status is not
    ok."""
    others: list[str] = Field(default_factory=list)
    """Variants that took turns in the same sessions."""
    stopped: Literal["precision", "sessions", "budget"] | None
    """Why the first round has no more sessions: precise enough, maximum reached, or out of time."""
    looks: Few = 0
    """Number of times its verdict decided whether to continue measuring; the interval is widened
    to account for that many looks at accumulating data. 0 if nothing depended on the verdict."""
    seconds: Elapsed
    """Time of all sessions including startup and shutdown, for all sides that took turns."""
    provenance: dict[str, Provenance]
    """Where this record comes from, by side."""

    @property
    def pair(self) -> Pair:
        """Variant and reference."""
        return Pair(self.variant, self.reference)

    @property
    def ratios(self) -> list[LogRatio]:
        """Throughput ratio of each session."""
        return [session.ratio(self.pair) for session in self.sessions]


class Effect(Schema):
    """Effect of a variant on one quantity."""

    quantity: Quantity
    """Throughput in non-padding tokens per second, largest peak memory of any rank, or bytes
    sent by all ranks per optimizer step."""
    ratio: Interval | None
    """Variant over reference, with an interval that holds for all comparisons of the study at
    once; null if either side was not measured, or if the reference's value is zero."""
    verdict: Verdict | None
    """FASTER or SLOWER for throughput, LESS or MORE for the others; SAME if the interval lies
    within the study's margin, UNDECIDED if none of these; null if there was nothing to judge."""
    reason: str = ""
    """Reason for a missing or UNDECIDED verdict."""


class Comparison(Schema):
    """A variant against a reference."""

    variant: str
    """Name of the variant."""
    reference: str
    """Name of the reference: the study's baseline, or one named by the study or a claim."""
    effects: list[Effect]
    """One effect per quantity."""
    certificate: CertificateStatus
    """Whether the variant trains the same model as the certificates' reference; inconclusive if
    its turns were computed differently from the certified training."""
    counts: bool
    """Whether the ratio is a speed-up of the same training: both sides have certificates."""
    note: str = Field(default="")
    """Caveats for the reader (waits for input, other devices, ...)."""
    record: str | None = None
    """Record of the turns, relative to this file's folder; null in earlier versions."""

    @property
    def pair(self) -> Pair:
        """Variant and reference."""
        return Pair(self.variant, self.reference)

    def effect(self, quantity: Quantity) -> Effect:
        """Returns the effect on one quantity."""
        return next(effect for effect in self.effects if effect.quantity == quantity)

    @property
    def speedup(self) -> Interval | None:
        """Ratio of throughputs; null if either was not measured."""
        return self.effect("throughput").ratio

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the throughput."""
        return self.effect("throughput").verdict


class SelfTestRun(Schema):
    """results/self_test/sessions.json: one run spec under several names, some slowed down."""

    reference: str
    """Name of the side that the others are compared with."""
    sessions_each: Few
    """Sessions per comparison of each kind."""
    comparing: Comparing
    """The protocol."""
    sessions: list[Session]
    """All sessions; their sides record how much they are slowed down."""
    seconds: Elapsed
    """Time of all sessions."""
    provenance: Provenance
    """Where this record comes from."""


class Share(Schema):
    """A count among a number of comparisons, with the 95 % interval of the probability."""

    count: Many
    """The count."""
    total: Many
    """The total."""
    low: Proportion
    """Lower end of the interval (Clopper and Pearson, 1934)."""
    high: Proportion
    """Upper end."""


class SelfTestKind(Schema):
    """All comparisons of a side slowed down by one amount, or not at all."""

    planted: Amount
    """Fraction by which its steps are slowed down; 0 for the same run spec under two names."""
    expected: Measured
    """The expected ratio of throughputs."""
    ratio: Measured
    """Median of the measured ratios."""
    verdicts: dict[Verdict, Many]
    """Comparisons by verdict."""
    covered: Share
    """Comparisons whose interval contains the expected ratio."""
    called_different: Share
    """Comparisons called FASTER or SLOWER: false alarms for equal sides, otherwise detections."""
    wrong: Many
    """Comparisons with a false verdict: different for equal sides, FASTER for a slower one, SAME
    for a difference beyond the margin."""
    required: str
    """The requirement, in a sentence; empty if there is none."""
    holds: bool
    """Whether the requirement is met."""


class SelfTestReport(Schema):
    """results/self_test/report.json: results of the protocol with known truth."""

    holds: bool
    """Whether all requirements are met."""
    reason: str
    """The result in a sentence."""
    kinds: list[SelfTestKind]
    """Equal sides, and each planted slow-down."""
    comparisons_together: Many
    """Number of comparisons whose intervals hold at once: as many as in a study."""
    error_within: Amount
    """Median standard error of the logarithm of a session's ratio, from its windows."""
    deviation_between: Amount
    """Standard deviation of that logarithm between sessions, beyond the error."""
    foreign_share: Amount | None
    """Fraction of the CPUs used by other processes, median over sessions."""
    margin: Amount
    """Ratios up to 1 + margin are the same."""
    sessions_each: Few
    """Sessions of a comparison."""
    comparing: Comparing
    """The protocol."""
    seconds: Elapsed
    """Time of all sessions."""
    provenance: Provenance
    """Where this record comes from: command, machine, versions."""
