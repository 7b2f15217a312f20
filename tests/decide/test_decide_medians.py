"""Medians and their intervals, and arithmetic on intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.results import Interval
from transformer_core.decide.intervals import (
    exact,
    median_interval,
    product,
    quotient,
    range_of,
    widened,
)

rates = st.floats(1.0, 1e6)
groups = st.lists(st.lists(rates, max_size=8), min_size=1, max_size=4).filter(any)


def sample(seed: int, size: int, center: float = 100.0) -> list[float]:
    return list(np.random.default_rng(seed).normal(center, 3.0, size))


def rates_of(generator, repeats: int, windows: int, between: float, alike: float) -> list:
    """Rates around 100 of windows that resemble their neighbors, in repeats that differ."""
    found = []
    for _ in range(repeats):
        noise = generator.standard_normal(windows)
        for i in range(1, windows):
            noise[i] = alike * noise[i - 1] + (1 - alike**2) ** 0.5 * noise[i]
        found.append(100 * np.exp(between * generator.standard_normal() + 0.02 * noise))
    return found


@pytest.mark.parametrize(
    ("repeats", "windows", "between", "alike"),
    [(1, 24, 0.0, 0.0), (1, 96, 0.0, 0.5), (2, 12, 0.02, 0.0), (4, 12, 0.02, 0.5)],
)
def test_intervals_hold(repeats, windows, between, alike):
    generator, held = np.random.default_rng(1), 0
    for _ in range(400):
        interval = median_interval(rates_of(generator, repeats, windows, between, alike))
        held += interval.low <= 100 <= interval.high
    assert 0.88 < held / 400 < 0.98


def test_interval_covers_repeats_that_differ():
    apart = [sample(1, 20, 100.0), sample(2, 20, 130.0)]
    interval = median_interval(apart)
    assert interval.low < np.median(apart[0]) + 2
    assert interval.high > np.median(apart[1]) - 2
    pooled = median_interval([apart[0] + apart[1]])
    assert pooled.high - pooled.low < interval.high - interval.low


@pytest.mark.parametrize(
    ("samples", "low", "median", "high"),
    [
        # Few samples give their range.
        ([[4.0], []], 4.0, 4.0, 4.0),
        ([[4.0, 6.0], []], 4.0, 5.0, 6.0),
        ([[5.0] * 9, [5.0], [5.0] * 3], 5.0, 5.0, 5.0),
    ],
)
def test_medians(samples, low, median, high):
    count = sum(map(len, samples))
    expected = Interval(median=median, low=low, high=high, samples=count)
    assert median_interval(samples) == expected


def test_two_repeats_have_one_degree_of_freedom():
    interval = median_interval([[1.0, 2.0], [], [4.0, 8.0]])
    assert interval.median == 3.0  # even counts take the mean of the middle two
    assert interval.high == pytest.approx(3 * 2**12.7062, rel=1e-4)  # the medians are 1.5 and 6
    assert interval.low == pytest.approx(3 * 2**-12.7062, rel=1e-4)


@settings(max_examples=20, deadline=None)
@given(groups)
def test_median_lies_in_the_interval_and_in_the_samples(samples):
    interval = median_interval(samples)
    values = [value for group in samples for value in group]
    assert interval.low <= interval.median <= interval.high
    assert min(values) <= interval.median <= max(values)
    assert interval == median_interval(samples)


def test_ends_combine_to_the_widest():
    first, second = range_of([4.0, 5.0, 6.0]), range_of([1.0, 2.0])
    assert quotient(first, second) == Interval(median=5 / 1.5, low=2.0, high=6.0, samples=2)
    assert product(first, second) == Interval(median=7.5, low=4.0, high=12.0, samples=2)
    assert quotient(exact(3.0), exact(2.0)) == exact(1.5)
    assert quotient(exact(0.0), exact(2.0)) == exact(0.0)


def test_an_interval_is_widened_by_a_share_of_each_end():
    assert widened(range_of([2.0, 4.0]), 0.5) == Interval(median=3.0, low=1.0, high=6.0, samples=2)
    assert widened(exact(-2.0), 0.5) == Interval(median=-2.0, low=-3.0, high=-1.0, samples=1)


def test_only_samples_have_a_median_and_only_sizes_a_ratio():
    assert median_interval([[], []]) is None
    for above, below in ((1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="is not a ratio"):
            quotient(exact(above), exact(below))
    with pytest.raises(ValueError, match="is not a product"):
        product(exact(1.0), exact(-1.0))
