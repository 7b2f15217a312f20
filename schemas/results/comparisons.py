"""Timed comparisons, results/turns/, and what they show: results/comparisons.json."""

from typing import Literal, NamedTuple

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.results.common import (
    Amount,
    Bytes,
    Celsius,
    Elapsed,
    Few,
    Interval,
    Many,
    Megahertz,
    PerSecond,
    Quantity,
    SignedSeconds,
    Status,
    Watts,
)
from schemas.results.equivalence import CertificateStatus
from schemas.results.kernels import StepKernels
from schemas.results.runs import Provenance, Topology

Verdict = Literal["FASTER", "SLOWER", "LESS", "MORE", "SAME", "UNDECIDED"]


class Pair(NamedTuple):
    """A comparison: variant over reference, in this order everywhere."""

    variant: str
    reference: str

    def __str__(self) -> str:
        """<variant>/<reference>, which is also the place of its record in a folder."""
        return f"{self.variant}/{self.reference}"


class LogRatio(NamedTuple):
    """Logarithm of a ratio, variant over reference, from one session."""

    variant: str
    reference: str
    estimate: float
    error: float
    """Standard error from the windows of the session alone: differences between processes are not
    in it. 0 for what is counted."""
    freedom: int
    """Degrees of freedom of the error."""
    pairs: int
    """Pairs of windows."""


class Probe(Schema):
    """How fast a device is at one moment, at two tasks that have nothing to do with training."""

    device: str
    """cpu, or cuda:<index>."""
    matmul_flops_per_second: PerSecond
    """Rate of a product of two square matrices of 32-bit numbers."""
    copy_bytes_per_second: PerSecond
    """Rate of a copy within the memory of the device, bytes read plus bytes written."""


class GpuState(Schema):
    """What NVML says of a GPU at one moment; null where it does not tell."""

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
    """Reasons for which the clocks are held down (power cap, heat); empty if they are not."""


class MachineState(Schema):
    """The machine at one moment, while no training works on it; null where it does not tell."""

    probes: list[Probe]
    """Speed of the devices; empty where a session ended before it could be measured."""
    cpu_megahertz: Megahertz | None
    """Mean clock of the CPU's cores."""
    cpu_celsius: Celsius | None
    """Highest temperature of a sensor of the CPU."""
    load_average: Amount | None
    """Mean number of runnable processes of the host in the last minute."""
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
    """Time the slowest rank waited for its batches."""


class Round(Schema):
    """One window of every side, one right after the other."""

    windows: list[TurnWindow]
    """In the order of time."""


class Side(Schema):
    """The processes of one side in one session."""

    name: str
    """Name of the side: its variant, or another name for the same run spec."""
    planted: Amount = 0.0
    """Share by which its steps are slowed down on purpose, to test the protocol itself."""
    topology: Topology | None
    """What it ran on; null if it ended before it knew."""
    startup_seconds: Elapsed | None
    """From the start of the processes until they were ready for the first step."""
    warmup_seconds: Elapsed | None
    """Time of the warm-up steps, compilation included."""
    peak_memory_bytes: Bytes | None
    """Largest peak of any rank at the end: reserved device memory on CUDA, resident set on CPU."""
    kernels: StepKernels | None = None
    """What computed its first step, which belongs to the warm-up; null where nobody looked."""


class Session(Schema):
    """Fresh processes of all sides, which take turns.

    A session-<k>.json holds one until all comparisons of a job are complete.
    """

    number: Few
    """From 1."""
    started: str
    """Start, ISO 8601 in UTC."""
    seconds: Elapsed
    """From the start of the processes to their end."""
    sides: list[Side]
    """The sides, the reference first."""
    rounds: list[Round]
    """What was timed."""
    ratios: list[LogRatio] = Field(default_factory=list)
    """Throughput of each side over each side before it; none in records of earlier versions."""
    before: MachineState
    """The machine before the warm-up, when all sides are ready and wait."""
    after: MachineState
    """The machine after the last round."""
    foreign_cpu_seconds: SignedSeconds | None
    """CPU time that other processes of the host took during the rounds."""
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
    """results/turns/<group>/<variant>/<reference>.json: two run specs, timed in turns. With a time
    for the study, results/refined/<variant>/<reference>.json has the sessions added since too."""

    reference: str
    """Name of the reference."""
    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed side."""
    ended_by: str | None
    """The side that is not ok; null if both are."""
    sessions: list[Session]
    """Every session, in order; none if it is not ok. Windows of others are left out."""
    others: list[str] = Field(default_factory=list)
    """Variants that took turns in the same sessions."""
    stopped: Literal["precision", "sessions", "budget"] | None
    """Why the first round has no more sessions: precise enough, as many as allowed, or no time
    left."""
    looks: Few = 0
    """How often its verdict decided whether it was measured further; its interval is as wide as
    that many looks at growing data need. 0 where nothing depended on the verdict."""
    seconds: Elapsed
    """Time of all sessions, with what starting and ending them took, for all that took turns."""
    provenance: dict[str, Provenance]
    """Where this comes from, by side."""

    @property
    def pair(self) -> Pair:
        """Variant and reference."""
        return Pair(self.variant, self.reference)

    @property
    def ratios(self) -> list[LogRatio]:
        """The ratio of the throughputs in each session."""
        return [session.ratio(self.pair) for session in self.sessions]


class Effect(Schema):
    """What a variant does to one quantity."""

    quantity: Quantity
    """Throughput in non-padding tokens per second, largest peak of memory of any rank, or bytes
    that all ranks send in an optimizer step."""
    ratio: Interval | None
    """Variant over reference, with an interval that holds for all comparisons of the study at
    once; null if either side was not measured, or if the reference has none of it."""
    verdict: Verdict | None
    """FASTER or SLOWER of a throughput, LESS or MORE of the others; SAME if the interval lies
    within the study's margin, UNDECIDED if it does neither; null if there was nothing to judge."""
    reason: str = ""
    """Why there is no verdict, or none but UNDECIDED."""


class Comparison(Schema):
    """A variant against a reference."""

    variant: str
    """Name of the variant."""
    reference: str
    """Name of the reference; the baseline of the study, or one that the study or a claim names."""
    effects: list[Effect]
    """One of each quantity."""
    certificate: CertificateStatus
    """Whether the variant trains the same model as the reference of the certificates; inconclusive
    where its turns were computed otherwise than what was certified."""
    counts: bool
    """Whether the ratio is a speed-up of the same training: both have their certificates."""
    note: str = Field(default="")
    """What a reader must know (waits for input, other devices, ...)."""
    record: str | None = None
    """The record of the turns, below the folder of this file; null in those of earlier versions."""

    @property
    def pair(self) -> Pair:
        """Variant and reference."""
        return Pair(self.variant, self.reference)

    def effect(self, quantity: Quantity) -> Effect:
        """The effect on one quantity."""
        return next(effect for effect in self.effects if effect.quantity == quantity)

    @property
    def speedup(self) -> Interval | None:
        """Ratio of the throughputs; null if either is not measured."""
        return self.effect("throughput").ratio

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the throughput."""
        return self.effect("throughput").verdict
