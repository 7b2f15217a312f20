"""Arithmetic on intervals."""

import pytest

from schemas.results import Interval
from transformer_core.decide.intervals import exact, product, quotient, range_of


def test_ends_combine_to_the_widest():
    first, second = range_of([4.0, 5.0, 6.0]), range_of([1.0, 2.0])
    assert quotient(first, second) == Interval(median=5 / 1.5, low=2.0, high=6.0, samples=2)
    assert product(first, second) == Interval(median=7.5, low=4.0, high=12.0, samples=2)
    assert quotient(exact(3.0), exact(2.0)) == exact(1.5)


def test_only_sizes_have_a_ratio():
    for above, below in ((1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="is not a ratio"):
            quotient(exact(above), exact(below))
    with pytest.raises(ValueError, match="is not a product"):
        product(exact(1.0), exact(-1.0))
    assert quotient(exact(0.0), exact(2.0)) == exact(0.0)
