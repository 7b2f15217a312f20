"""What the records of several rooms share, above all what their numbers may be.

A number has the bounds of what it counts or measures, wide enough for any machine: what lies beyond
them was never measured, but damaged, or written by hand.
"""

from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema

Quantity = Literal["throughput", "peak_memory", "traffic"]
"""What a comparison is about."""

Status = Literal["ok", "oom", "diverged", "unsupported", "failed"]

Few = Annotated[int, Field(ge=0, le=1_000_000)]
"""What a job or machine has a limited number of, and its place among them: ranks, hosts, threads,
layers, sessions."""
Many = Annotated[int, Field(ge=0, le=2**53)]
"""How many, up to the largest number that every reader of JSON has exactly: tokens, events."""
Operations = Annotated[int, Field(ge=0, le=10**27), Unit("FLOPs")]
"""Floating-point operations: a year of the largest machines."""

_EXBIBYTE = 2**60
Bytes = Annotated[int, Field(ge=0, le=_EXBIBYTE), Unit("bytes")]
SignedBytes = Annotated[int, Field(ge=-_EXBIBYTE, le=_EXBIBYTE), Unit("bytes")]
"""What is left of one measurement when another is taken away."""

_YEARS = 1_000_000_000
"""Seconds: 31 years."""
Nanoseconds = Annotated[int, Field(ge=0, le=_YEARS * 10**9), Unit("nanoseconds")]
SignedNanoseconds = Annotated[
    int, Field(ge=-_YEARS * 10**9, le=_YEARS * 10**9), Unit("nanoseconds")
]
"""A difference of two clock readings, or of two durations."""
Elapsed = Annotated[float, Field(ge=0.0, le=_YEARS), Unit("seconds")]
"""A duration."""
SignedSeconds = Annotated[float, Field(ge=-_YEARS, le=_YEARS), Unit("seconds")]
"""A difference of two clock readings, or of two durations, or one that was fitted."""

PerSecond = Annotated[float, Field(ge=0.0, le=1e24)]
"""A rate, in whatever unit: up to thousands of times that of the largest machines."""
Proportion = Annotated[float, Field(ge=-1e-6, le=1.0 + 1e-6)]
"""From 0 to 1, but for rounding."""
Cosine = Annotated[float, Field(ge=-1.0 - 1e-6, le=1.0 + 1e-6)]
"""From -1 to 1, but for rounding."""
Score = Annotated[float, Field(ge=0.0, le=100.0 + 1e-6)]
"""A score of translations from 0 to 100, but for rounding."""
Loss = Annotated[float, Field(ge=-1e9, le=1e39)]
"""A loss in nats: up to the largest number of 32 bits where a training diverges. None is negative
but for rounding, and models of users may add terms that are."""
Magnitude = Annotated[float, Field(ge=0.0, le=1e300)]
"""A norm, or a ratio of norms, whose divisor may be next to nothing."""
Extreme = Annotated[float, Field(ge=-1e300, le=1e300)]
"""The same with a sign."""
Amount = Annotated[float, Field(ge=0.0, le=1e12)]
"""A ratio, a mean of counts, or so much for each of something."""
Measured = Annotated[float, Field(ge=-1e24, le=1e24)]
"""What is measured or computed from that, in whatever unit, with a sign where it has one."""
Celsius = Annotated[float, Field(ge=-274.0, le=1_000.0), Unit("degrees Celsius")]
Megahertz = Annotated[float, Field(ge=0.0, le=1_000_000.0), Unit("megahertz")]
Watts = Annotated[float, Field(ge=0.0, le=1_000_000.0), Unit("watts")]


class Interval(Schema):
    """A median and its 95 % interval."""

    median: Measured
    """The median."""
    low: Measured
    """Lower end."""
    high: Measured
    """Upper end."""
    samples: Many
    """How many values it comes from."""
