"""Types shared by several kinds of records, mainly the bounds of their numbers.

Each number is bounded by what it counts or measures, widely enough for any machine: a value outside
its bounds was not measured, but corrupted or written by hand.
"""

from collections.abc import Callable
from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema

BASELINE = "baseline"
BEST = "best"
"""Names of two sides of the final comparison and of the race to a quality; the other sides are
stages between them, or variants."""

Quantity = Literal["throughput", "peak_memory", "traffic"]  # quantity that a comparison measures

Status = Literal["ok", "oom", "diverged", "unsupported", "failed"]

Few = Annotated[int, Field(ge=0, le=2**20)]
"""Count or index of a limited resource of a job or machine: ranks, hosts, threads, layers,
sessions."""
Many = Annotated[int, Field(ge=0, le=2**53)]
"""A count, up to the largest integer that every JSON reader represents exactly: tokens, events."""
Operations = Annotated[int, Field(ge=0, le=10**27), Unit("FLOPs")]
"""Floating-point operations: up to a year's work of the largest machines."""

_EXBIBYTE = 2**60
Bytes = Annotated[int, Field(ge=0, le=_EXBIBYTE), Unit("bytes")]
SignedBytes = Annotated[int, Field(ge=-_EXBIBYTE, le=_EXBIBYTE), Unit("bytes")]
"""Difference between two measurements, in bytes."""

_YEARS = 1_000_000_000  # seconds: 31 years
Nanoseconds = Annotated[int, Field(ge=0, le=_YEARS * 10**9), Unit("nanoseconds")]
SignedNanoseconds = Annotated[
    int, Field(ge=-_YEARS * 10**9, le=_YEARS * 10**9), Unit("nanoseconds")
]
"""Difference between two clock readings or two durations."""
Elapsed = Annotated[float, Field(ge=0.0, le=_YEARS), Unit("seconds")]  # a duration
SignedSeconds = Annotated[float, Field(ge=-_YEARS, le=_YEARS), Unit("seconds")]
"""Difference between two clock readings or two durations, or a fitted duration."""

PerSecond = Annotated[float, Field(ge=0.0, le=1e24)]
"""A rate, in any unit: up to thousands of times that of the largest machines."""
Proportion = Annotated[float, Field(ge=-1e-6, le=1.0 + 1e-6)]  # from 0 to 1, up to rounding
Cosine = Annotated[float, Field(ge=-1.0 - 1e-6, le=1.0 + 1e-6)]  # from -1 to 1, up to rounding
Score = Annotated[float, Field(ge=0.0, le=100.0 + 1e-6)]
"""A translation score from 0 to 100, up to rounding."""
Loss = Annotated[float, Field(ge=-1e9, le=1e39)]
"""A loss in nats, up to the largest 32-bit number if a training diverges. Losses are nonnegative
up to rounding, but users' models may add negative terms."""
Magnitude = Annotated[float, Field(ge=0.0, le=1e300)]
"""A norm, or a ratio of norms whose divisor may be close to zero."""
Extreme = Annotated[float, Field(ge=-1e300, le=1e300)]  # the same with a sign
Amount = Annotated[float, Field(ge=0.0, le=1e12)]
"""A ratio, a mean of counts, or an amount per item."""
Measured = Annotated[float, Field(ge=-1e24, le=1e24)]
"""A measured or derived quantity, in any unit, possibly signed."""
Megahertz = Annotated[float, Field(ge=0.0, le=1_000_000.0), Unit("megahertz")]
Watts = Annotated[float, Field(ge=0.0, le=1_000_000.0), Unit("watts")]


class Ending(Schema):
    """How something ended, and why it is not ok."""

    status: Status
    reason: str | None


class Interval(Schema):
    """A median and its 95 % interval."""

    median: Measured
    low: Measured
    high: Measured
    samples: Many  # number of values it is based on

    def mapped(self, change: Callable[[float], float]) -> "Interval":
        """The same with each of the three numbers changed."""
        return Interval(
            median=change(self.median),
            low=change(self.low),
            high=change(self.high),
            samples=self.samples,
        )
