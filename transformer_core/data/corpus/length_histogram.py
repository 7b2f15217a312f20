"""How many sentences have which length."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Counts = dict[int, int]
"""Sentences by length, shortest first."""


def count_lengths(lengths: NDArray[np.integer]) -> Counts:
    """How often each of ``lengths`` [n] occurs."""
    values, counts = np.unique(lengths, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def add_counts(parts: Iterable[Counts]) -> Counts:
    """The counts of several parts together."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))
