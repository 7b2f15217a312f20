"""Comparisons and the test of their protocol: results/turns/, comparisons.json, self_test/."""

from math import ceil
from typing import Literal, NamedTuple, get_args

from pydantic import Field, field_validator

from schemas.base import MOST_SECONDS, Schema, StepsOrNone
from schemas.config.measurement import Comparing
from schemas.results.certificates import CertificateStatus
from schemas.results.common import (
    Amount,
    Bytes,
    Elapsed,
    Ending,
    Few,
    Interval,
    Many,
    Measured,
    Megahertz,
    PerSecond,
    Proportion,
    Quantity,
    SignedSeconds,
)
from schemas.results.runs import Provenance, StepKernels, Topology


class Stint(Schema):
    """Sessions added to comparisons in one batch, before their verdicts were checked again."""

    reference: str  # the common reference
    variants: list[str]  # the variants that took turns with it
    sessions: Few  # number of sessions added
    seconds: Elapsed  # time that they took
    reason: str = ""  # why it ended early, if a side could not continue


class Unsettled(Schema):
    """An undecided comparison, and what would settle it."""

    variant: str
    reference: str  # name of the reference
    seconds: Elapsed | None  # more time that would probably settle it; null if none would
    reason: str = ""  # why more time does not help


class Refinement(Schema):
    """How the study's time limit (its field ``time``) was used."""

    asked_seconds: Elapsed  # time limit of the study
    kept_seconds: Elapsed  # time reserved for later jobs: verdicts, the search, the report
    ended_at_seconds: Elapsed  # time spent by the end of the last comparison
    stints: list[Stint]  # batches added by this job; earlier sessions are kept
    unsettled: list[Unsettled]  # undecided comparisons that count, soonest to be settled first

    def next_seconds(self, spent: float) -> float:
        """A time limit, in whole minutes, that would probably settle one more comparison, given
        the seconds already spent; twice the current limit if none is known to, and at most what a
        study may ask for."""
        times = [one.seconds for one in self.unsettled if one.seconds is not None]
        more = min(times, default=self.asked_seconds)
        limit = 60.0 * ceil((max(self.asked_seconds, spent + self.kept_seconds) + more) / 60)
        return min(limit, MOST_SECONDS)


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
    error: float  # standard error from the session's windows alone; 0 for counts
    freedom: int  # degrees of freedom of the error
    pairs: int  # pairs of windows
    processes: int = 1  # processes of the reference in the session


class Probe(Schema):
    """Speed of a device at one moment, at two tasks unrelated to training."""

    device: str  # cpu, or cuda:<index>
    matmul_flops_per_second: PerSecond  # rate of a product of two square matrices of 32-bit numbers
    copy_bytes_per_second: PerSecond  # of a copy within device memory, read plus written


class GpuState(Schema):
    """State of a GPU at one moment according to NVML; null for anything it does not report."""

    index: Few  # NVML index
    clock_megahertz: Megahertz | None  # clock of the multiprocessors
    throttled: list[str] | None  # why clocks are limited (power cap, heat), if they are


class GpuWork(Schema):
    """Work of a GPU over some time, of all its processes; null for anything NVML does not count."""

    index: Few  # NVML index
    power_held_seconds: Elapsed | None  # time for which the limit of its power held its clocks down
    heat_held_seconds: Elapsed | None  # time for which its temperature held its clocks down


class MachineState(Schema):
    """State of the machine at one moment with no training active; null for anything unknown."""

    probes: list[Probe]  # speed of the devices, if it could be measured
    gpus: list[GpuState]  # the GPUs of the host


class TurnWindow(Schema):
    """A few steps of one side, between two synchronized clock readings, while the others wait."""

    side: str  # name of the side
    began: SignedSeconds  # seconds since the session began
    seconds: Elapsed  # wall time; of several processes of the reference, the geometric mean
    of_processes: list[Elapsed] = Field(default=[])  # the wall time of each of these
    steps: StepsOrNone  # optimizer steps
    tokens: Many  # non-padding source and target tokens over all ranks
    padded_tokens: Many  # source and target tokens with padding over all ranks
    input_wait_seconds: Elapsed  # time that the slowest rank waited for its batches

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps


class Round(Schema):
    """One window of every side, in immediate succession."""

    windows: list[TurnWindow]  # the windows in order of time
    gpus: list[GpuWork] = Field(default=[])  # the GPUs of the host during it


class Side(Schema):
    """The processes of one side in one session."""

    name: str  # name of the side: its variant, or another name for the same run spec
    planted: Amount = 0.0  # fraction by which its steps are slowed down on purpose
    topology: Topology | None  # devices and processes used; null if it ended before they were known
    startup_seconds: Elapsed | None  # until its processes were ready for the first step
    warmup_seconds: Elapsed | None  # time of the warm-up steps, compilation included
    peak_memory_bytes: Bytes | None  # reserved on CUDA, resident set on CPU; largest rank
    kernels: StepKernels | None = None  # of its first step, in the warm-up


FOREIGN_LIMIT = 0.05
"""Share of the machine's CPU time used by other processes above which a result says so."""


class Session(Schema):
    """Fresh processes of all sides, which take turns.

    A session-<k>.json file holds one session until all comparisons of a job are complete.
    """

    number: Few  # number of the session, from 1
    started: str  # start, ISO 8601 in UTC
    seconds: Elapsed  # from the start of the processes to their end
    sides: list[Side]  # the sides, the reference first
    rounds: list[Round]  # the timed rounds
    ratios: list[LogRatio] = Field(default=[])  # of each side over each side before it
    before: MachineState  # the machine before the warm-up, with all sides ready and waiting
    after: MachineState  # the machine after the last round
    foreign_cpu_seconds: SignedSeconds | None  # of other processes during the rounds
    rounds_seconds: Elapsed  # time of all rounds

    def windows(self, side: str) -> list[TurnWindow]:
        """The windows of one side, in order."""
        return [w for turn in self.rounds for w in turn.windows if w.side == side]

    def foreign_share(self, cpus: int) -> float | None:
        """The share of the time of so many CPUs that other processes took."""
        foreign = self.foreign_cpu_seconds
        return None if foreign is None else foreign / self.rounds_seconds / cpus

    def ratio(self, pair: Pair) -> LogRatio:
        """The ratio of two of the sides. Raises KeyError if the session does not have it."""
        for found in self.ratios:
            if (found.variant, found.reference) == pair:
                return found
            if (found.reference, found.variant) == pair:
                return LogRatio(
                    *pair, -found.estimate, found.error, found.freedom, pairs=found.pairs
                )
        raise KeyError(f"session {self.number} has no ratio of {pair}")


class PairedRun(Ending):
    """results/turns/<group>/<variant>/<reference>.json: two run specs, timed in turns. If the
    study has a time limit, results/refined/<variant>/<reference>.json also includes sessions
    added since."""

    reference: str  # name of the reference
    variant: str
    traceback: str | None  # the traceback of a failed side
    ended_by: str | None  # the side whose status is not ok; null if both are ok
    sessions: list[Session]  # in order, without the windows of other variants
    others: list[str] = Field(default=[])  # variants that took turns in the same sessions
    stopped: Literal["precision", "sessions", "budget"] | None  # why there are no more sessions
    looks: Few = 0  # verdicts that decided whether to measure on; these widen the interval
    seconds: Elapsed  # of all sessions, for all sides that took turns
    provenance: dict[str, Provenance]  # where this record comes from, by side

    @property
    def pair(self) -> Pair:
        return Pair(self.variant, self.reference)

    @property
    def ratios(self) -> list[LogRatio]:
        return [session.ratio(self.pair) for session in self.sessions]


class Effect(Schema):
    """Effect of a variant on one quantity."""

    quantity: Quantity
    """Throughput in non-padding tokens per second, largest peak memory of any rank, or bytes
    sent by all ranks per optimizer step."""
    ratio: Interval | None  # holds for all comparisons of the study at once; null if none
    verdict: Verdict | None
    """FASTER or SLOWER for throughput, LESS or MORE for the others; SAME if the interval lies
    within the study's margin, UNDECIDED if none of these; null if there was nothing to judge."""
    reason: str = ""  # reason for a missing or UNDECIDED verdict


class Comparison(Schema):
    """A variant against a reference."""

    variant: str
    reference: str  # the baseline, or one that the study or a claim names
    effects: list[Effect]  # one effect per quantity
    certificate: CertificateStatus  # inconclusive if its turns computed differently
    counts: bool  # whether both sides have certificates: a speed-up of the same training
    note: str = Field(default="")  # caveats for the reader (waits for input, other devices, ...)
    record: str | None = None  # record of the turns, relative to this file's folder

    @field_validator("effects")
    @classmethod
    def _one_per_quantity(cls, effects: list[Effect]) -> list[Effect]:
        if sorted(effect.quantity for effect in effects) != sorted(get_args(Quantity)):
            raise ValueError(f"needs one effect for each of {', '.join(get_args(Quantity))}")
        return effects

    @property
    def pair(self) -> Pair:
        return Pair(self.variant, self.reference)

    def effect(self, quantity: Quantity) -> Effect:
        return next(effect for effect in self.effects if effect.quantity == quantity)

    @property
    def speedup(self) -> Interval | None:
        """Ratio of throughputs; null if either was not measured."""
        return self.effect("throughput").ratio

    @property
    def verdict(self) -> Verdict | None:
        return self.effect("throughput").verdict


class SelfTestRun(Schema):
    """results/self_test/sessions.json: one run spec under several names, some slowed down."""

    reference: str  # name of the side that the others are compared with
    sessions_each: Few  # sessions per comparison of each kind
    comparing: Comparing  # the protocol
    sessions: list[Session]  # all sessions; their sides record how much they are slowed down
    seconds: Elapsed  # time of all sessions
    provenance: Provenance


class Share(Schema):
    """A count among a number of comparisons, with the 95 % interval of the probability."""

    count: Many
    total: Many
    low: Proportion  # lower end of the interval (Clopper and Pearson, 1934)
    high: Proportion


class SelfTestKind(Schema):
    """All comparisons of a side slowed down by one amount, or not at all."""

    planted: Amount  # fraction by which its steps are slowed down; 0 for equal sides
    expected: Measured  # the expected ratio of throughputs
    ratio: Measured  # median of the measured ratios
    verdicts: dict[Verdict, Many]  # comparisons by verdict
    covered: Share  # comparisons whose interval contains the expected ratio
    called_different: Share  # false alarms for equal sides, otherwise detections
    wrong: Many  # comparisons with a false verdict
    required: str  # the requirement, in a sentence; empty if there is none
    holds: bool  # whether the requirement is met


class SelfTestReport(Schema):
    """results/self_test/report.json: results of the protocol with known truth."""

    holds: bool  # whether all requirements are met
    reason: str  # the result in a sentence
    kinds: list[SelfTestKind]  # equal sides, and each planted slow-down
    error_within: Amount  # of a session's log-ratio, from its windows, median
    deviation_between: Amount  # of the log-ratio between sessions, beyond the error
    foreign_share: Amount | None  # of the CPUs, by other processes; median
    margin: Amount  # ratios up to 1 + margin are the same
    sessions_each: Few  # sessions of a comparison
    comparing: Comparing  # the protocol
    seconds: Elapsed  # time of all sessions
    provenance: Provenance  # where this record comes from: command, machine, versions
