"""Arithmetic of time intervals: unions, partitions of a window, who is innermost.

Intervals are half-open, [t0, t1), in integer nanoseconds; those without length cover nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Union:
    """Disjoint intervals in order of time."""

    t0: Times
    t1: Times

    @property
    def length(self) -> int:
        return int((self.t1 - self.t0).sum())

    def clip(self, start: int, end: int) -> "Union":
        first = np.searchsorted(self.t1, start, side="right")
        inside = slice(first, max(first, np.searchsorted(self.t0, end)))
        t0, t1 = np.maximum(self.t0[inside], start), np.minimum(self.t1[inside], end)
        return Union(t0[t0 < t1], t1[t0 < t1])

    def gaps(self, start: int, end: int) -> "Union":
        """The parts of [start, end) that it leaves uncovered."""
        inside = self.clip(start, end)
        t0 = np.concatenate([[start], inside.t1]).astype(np.int64)
        t1 = np.concatenate([inside.t0, [end]]).astype(np.int64)
        return Union(t0[t0 < t1], t1[t0 < t1])


def union(t0: Times, t1: Times) -> Union:
    """The union of intervals in any order: nested, touching, overlapping, empty."""
    some = t0 < t1
    if not some.all():
        t0, t1 = t0[some], t1[some]
    order = np.argsort(t0, kind="stable")
    t0, t1 = t0[order], t1[order]
    if not len(t0):
        return Union(t0, t1)
    latest = np.maximum.accumulate(t1, out=t1)
    begins = np.concatenate([[True], t0[1:] > latest[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(t0) - 1]])
    return Union(t0[begins], latest[last])


def union_of(parts: Sequence[Union]) -> Union:
    return union(
        np.concatenate([part.t0 for part in parts]), np.concatenate([part.t1 for part in parts])
    )


def exposed(layers: Sequence[Union]) -> list[int]:
    """The time covered by each layer, but by none before it, in nanoseconds.

    Their sum is the length of the union of all layers.
    """
    covered, parts = 0, []
    for count in range(1, len(layers) + 1):
        together = union_of(layers[:count]).length
        parts.append(together - covered)
        covered = together
    return parts


class LatestAbove:
    """Finds the last element, up to a given place in an array, that exceeds a bound."""

    def __init__(self, values: Times) -> None:
        self._levels = [values]
        """The largest of 1, 2, 4, … neighbours."""
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            if len(below) % 2:
                below = np.append(below, np.iinfo(np.int64).min)
            self._levels.append(np.maximum(below[0::2], below[1::2]))

    def __call__(self, places: NDArray[np.int64], bounds: Times) -> NDArray[np.int64]:
        """For each place, the last index up to and including it whose value exceeds its bound, or -1."""
        found = np.full(len(places), -1, np.int64)
        asked = np.flatnonzero(places >= 0)
        place, bound, level = places[asked], bounds[asked], 0
        while len(asked):
            # If a block is the right half of its pair, the left half is searched too.
            for left in (False, True):
                mine = place - 1 if left else place
                hit = self._levels[level][mine] > bound
                if left:
                    hit &= place % 2 == 1
                found[asked[hit]] = self._within(mine[hit], bound[hit], level)
                asked, place, bound = asked[~hit], place[~hit], bound[~hit]
            place, level = place // 2 - 1, level + 1
            alive = place >= 0
            asked, place, bound = asked[alive], place[alive], bound[alive]
        return found

    def _within(self, place: NDArray[np.int64], bound: Times, level: int) -> NDArray[np.int64]:
        """The last element that exceeds the bound, in blocks known to hold one."""
        for values in reversed(self._levels[:level]):
            right = np.minimum(2 * place + 1, len(values) - 1)
            place = np.where(values[right] > bound, right, 2 * place)
        return place


class Innermost:
    """Which interval is innermost when. Of several running intervals, the one that began last owns the
    time. So operators own their self time, and the operators that they call own theirs."""

    def __init__(self, t0: Times, t1: Times) -> None:
        self._order = np.lexsort((-t1, t0))
        self._begins = t0[self._order]
        self._ends = t1[self._order]
        self._running = LatestAbove(self._ends)

    def at(self, times: Times) -> NDArray[np.int64]:
        """The owner at each of ``times``; -1 without one."""
        place = np.searchsorted(self._begins, times, side="right") - 1
        return self._owner(self._running(place, times))

    def _owner(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(self._order):
            return np.full(len(place), -1, np.int64)
        return np.where(place >= 0, self._order[place], -1)

    @cached_property
    def parent(self) -> NDArray[np.int64]:
        """For each interval, the one around its begin, or -1."""
        above = self._running(np.arange(len(self._order)) - 1, self._begins)
        found = np.empty(len(self._order), np.int64)
        found[self._order] = self._owner(above)
        return found

    @cached_property
    def stretches(self) -> tuple[Times, Times, NDArray[np.int64]]:
        """Begins, ends and owners of the stretches with a single owner, in order."""
        borders = np.unique(np.concatenate([self._begins, self._ends]))
        owner = self.at(borders[:-1])
        first = np.ones(len(owner), np.bool_)
        first[1:] = owner[1:] != owner[:-1]
        starts = np.flatnonzero(first)
        t0, t1 = borders[starts], borders[np.append(starts[1:], len(owner))[: len(starts)]]
        owned = owner[starts] >= 0
        return t0[owned], t1[owned], owner[starts][owned]
