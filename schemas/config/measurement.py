"""Timing of runs, and comparison of variants."""

from typing import Annotated

from annotated_types import Unit
from pydantic import Field, ValidationInfo, field_validator

from schemas.base import Count, Fraction, Schema, Seconds, Steps, StepsOrNone, refuse_less


class Measurement(Schema):
    """The timed part of a run, the same for every repeat."""

    warmup_steps: StepsOrNone = 20
    """Initial steps, reported separately and excluded from the throughput."""
    window_steps: Steps = 10
    """Steps between two synchronised clock readings: one throughput sample."""


class LeastOnGpu(Schema):
    """Minimum settings for comparisons on GPUs. The host runs ahead of the device, so a window
    needs many steps to show the cost of reading the loss or waiting for input."""

    warmup_steps: Steps = 30
    """Initial steps of each side in each session, while kernels are loaded and chosen and clocks
    rise."""
    window_seconds: Annotated[float, Field(ge=1e-6, le=3_600.0), Unit("seconds")] = 1.0
    """Duration of the timed steps of a turn, in seconds."""
    window_steps: Steps = 20
    """Timed steps per turn."""
    lead_steps: Annotated[int, Field(ge=0, le=10_000), Unit("steps")] = 4
    """Untimed steps at the start of a turn: more than the number of prefetched batches, which
    are ready after a side has waited."""
    budget: Seconds = 90.0
    """Seconds for all sessions of a two-sided comparison."""


class Comparing(Schema):
    """How a variant is compared with its reference: both run at the same time, in separate
    processes, and take turns. Not part of the run spec: it does not affect training."""

    warmup_steps: Steps = 10
    """Initial steps of each side in each session, compilation included; reported separately. At
    least two are taken: the last ones determine the number of steps per turn. Must exceed the
    number of steps after which a variant changes its behaviour (PowerSGD's start_step)."""
    window_seconds: Annotated[float, Field(ge=1e-6, le=3_600.0), Unit("seconds")] = 0.02
    """Minimum duration of a side's steps in a turn, in seconds; each side takes as many steps as
    the reference needs for it. Many short windows are less affected by machine drift than a few
    long ones."""
    window_steps: Steps = 2
    """Minimum number of timed steps per turn."""
    lead_steps: Annotated[int, Field(ge=0, le=10_000), Unit("steps")] = 1
    """Untimed steps at the start of a turn, while caches and clocks still reflect the previous
    side."""
    on_gpu: LeastOnGpu = LeastOnGpu()
    """Minimum values of these settings on GPUs."""
    pairs: Annotated[int, Field(ge=5, le=100_000)] = 5
    """Minimum turns per side in a session."""
    sessions_least: Count = 5
    """Sessions of each comparison, each in fresh processes. A single one cannot show how much
    processes differ: its verdict is UNDECIDED. Two sessions give an interval of 12.7 times the
    error, five of 2.8 times (Student's t): several short ones tell more than two long ones."""
    sessions_most: Count = 8
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
    same turns serve comparisons among the variants; all of them must fit into device memory."""
    margin: Fraction = 0.02
    """Ratios from 1 / (1 + margin) to 1 + margin are the SAME, if the whole interval lies
    within."""

    @field_validator("sessions_most")
    @classmethod
    def _most_is_not_less(cls, most: int, info: ValidationInfo) -> int:
        refuse_less(most, info, "sessions_least")
        return most


class SelfTest(Schema):
    """How the comparison protocol is tested on this machine: results/self_test/report.json."""

    comparisons: Annotated[int, Field(ge=2, le=100_000)] = 40
    """Comparisons of each kind: equal sides, and each planted slow-down."""
    planted: Annotated[
        tuple[Annotated[float, Field(ge=1e-4, lt=1.0)], ...], Field(max_length=100)
    ] = (0.03, 0.05, 0.10)
    """Fractions by which the steps of a side are deliberately slowed down."""
