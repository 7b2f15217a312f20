"""What is timed, and how often; how variants are compared."""

from typing import Annotated

from annotated_types import Unit
from pydantic import Field, ValidationInfo, field_validator

from schemas.base import Count, Fraction, Schema, Seconds, Steps, StepsOrNone, refuse_less


class Measurement(Schema):
    """The timed part of a run, the same for every repeat."""

    warmup_steps: StepsOrNone = 20
    """First steps, which are reported by themselves and not counted in the throughput."""
    window_steps: Steps = 10
    """Steps between two synchronised clock readings: one sample of the throughput."""


class LeastOnGpu(Schema):
    """What comparisons take at least where the devices are GPUs. The host runs ahead of them, so a
    window must have many steps to show what reading the loss or waiting for input costs."""

    warmup_steps: Steps = 30
    """First steps of each side in each session: kernels are loaded and chosen, clocks rise."""
    window_seconds: Annotated[float, Field(ge=1e-6, le=3_600.0), Unit("seconds")] = 1.0
    """Time of the timed steps of a turn."""
    window_steps: Steps = 20
    """Timed steps of a turn."""
    lead_steps: Annotated[int, Field(ge=0, le=10_000), Unit("steps")] = 4
    """Steps before those that are timed: more than the batches prepared ahead, which a side that
    has waited finds ready."""
    budget: Seconds = 90.0
    """Seconds for all sessions of a comparison of two sides."""


class Comparing(Schema):
    """How a variant is compared with its reference: both are ready at the same time, in processes
    of their own, and take turns. Not a part of the run spec: it changes no training."""

    warmup_steps: Steps = 10
    """First steps of each side in each session, compilation included; reported by themselves. Two
    at least are taken: the last of them tell how many steps a turn has. More than the steps after
    which a variant changes its ways (PowerSGD's start_step)."""
    window_seconds: Annotated[float, Field(ge=1e-6, le=3_600.0), Unit("seconds")] = 0.02
    """Least time of the steps that a side trains in a turn; it takes as many as the reference needs
    for that. Many short windows see less of a machine's drift than a few long ones."""
    window_steps: Steps = 1
    """Least number of the steps that are timed in a turn."""
    lead_steps: Annotated[int, Field(ge=0, le=10_000), Unit("steps")] = 1
    """Steps of a turn before those that are timed: caches and clocks are at first another's."""
    on_gpu: LeastOnGpu = LeastOnGpu()
    """What all of these are at least where the devices are GPUs."""
    pairs: Annotated[int, Field(ge=5, le=100_000)] = 5
    """Turns that each side has at least in a session."""
    sessions_least: Count = 4
    """Sessions of each comparison, each in fresh processes. A single one does not show how much
    processes differ: its verdict is UNDECIDED. Two of one comparison make an interval of 12.7 times
    the error, four of 3.2 times (Student's t): several short ones tell more than two long ones."""
    sessions_most: Count = 6
    """No more sessions than these, however wide the interval still is."""
    precision: Annotated[float, Field(ge=1e-6, lt=1.0)] = 0.01
    """A comparison is narrow enough once twice the standard error of its ratio, from the windows
    alone, is below this."""
    budget: Seconds = 12.0
    """Seconds for all sessions of a comparison of two sides, their start included; with more sides
    it is in proportion. Each session goes on until its part of it is spent, or it is narrow enough;
    none beyond sessions_least begins that would not end within it."""
    together: Annotated[int, Field(ge=2, le=64)] = 2
    """Sides that are alive at the same time: a reference and the variants that take turns with it.
    More of them take less time, since the reference is started and timed once for all, and the
    same turns serve comparisons among them; all of them must fit into the memory of the device."""
    margin: Fraction = 0.02
    """Ratios from 1 / (1 + margin) to 1 + margin are the SAME, if the whole interval is."""

    @field_validator("sessions_most")
    @classmethod
    def _most_is_not_less(cls, most: int, info: ValidationInfo) -> int:
        refuse_less(most, info, "sessions_least")
        return most


class SelfTest(Schema):
    """How the protocol of comparisons is put to the test on this machine:
    results/self_test/report.json."""

    comparisons: Annotated[int, Field(ge=2, le=100_000)] = 40
    """Comparisons of each kind: equal sides, and each planted slow-down."""
    planted: Annotated[
        tuple[Annotated[float, Field(ge=1e-4, lt=1.0)], ...], Field(max_length=100)
    ] = (0.03, 0.05, 0.10)
    """Shares by which the steps of a side are made longer on purpose."""
