"""Arithmetic on intervals, for numbers that several measurements go into.

Ends are combined the way that makes the interval widest, so it holds whatever the two have in
common (Moore, Interval Analysis, 1966).
"""

from collections.abc import Sequence
from statistics import median

from schemas.results import Interval


def exact(value: float) -> Interval:
    """A number without uncertainty: counted, or measured once."""
    return Interval(median=value, low=value, high=value, samples=1)


def range_of(values: Sequence[float]) -> Interval:
    """The median of repeated measurements and their range."""
    return Interval(median=median(values), low=min(values), high=max(values), samples=len(values))


def widened(interval: Interval, share: float) -> Interval:
    """``interval`` with each end moved outwards by a share of itself."""
    low = interval.low - share * abs(interval.low)
    high = interval.high + share * abs(interval.high)
    return interval.model_copy(update={"low": low, "high": high})


def quotient(above: Interval, below: Interval) -> Interval:
    """One number over another; ValueError unless both are 0 or more, and the second is above 0."""
    if above.low < 0 or below.low <= 0:
        raise ValueError(f"{above.low:g} over {below.low:g} is no ratio of two sizes")
    return Interval(
        median=above.median / below.median,
        low=above.low / below.high,
        high=above.high / below.low,
        samples=min(above.samples, below.samples),
    )


def product(first: Interval, second: Interval) -> Interval:
    """One number times another; ValueError unless both are 0 or more."""
    if first.low < 0 or second.low < 0:
        raise ValueError(f"{first.low:g} times {second.low:g} is no product of two sizes")
    return Interval(
        median=first.median * second.median,
        low=first.low * second.low,
        high=first.high * second.high,
        samples=min(first.samples, second.samples),
    )
