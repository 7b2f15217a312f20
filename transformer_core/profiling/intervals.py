"""Arithmetic of time intervals: unions, partitions of a window, who is innermost.

Intervals are half-open, [t0, t1), in integer nanoseconds; those without length cover nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
        """Nanoseconds covered."""
        return int((self.t1 - self.t0).sum())

    def clip(self, start: int, end: int) -> "Union":
        """The part within [start, end)."""
        inside = (self.t1 > start) & (self.t0 < end)
        t0, t1 = np.maximum(self.t0[inside], start), np.minimum(self.t1[inside], end)
        return Union(t0[t0 < t1], t1[t0 < t1])

    def gaps(self, start: int, end: int) -> "Union":
        """What it leaves uncovered of [start, end)."""
        inside = self.clip(start, end)
        t0 = np.concatenate([[start], inside.t1]).astype(np.int64)
        t1 = np.concatenate([inside.t0, [end]]).astype(np.int64)
        return Union(t0[t0 < t1], t1[t0 < t1])


def union(t0: Times, t1: Times) -> Union:
    """The union of intervals in any order: nested, touching, overlapping, empty."""
    some = t0 < t1
    order = np.argsort(t0[some], kind="stable")
    t0, t1 = t0[some][order], t1[some][order]
    if not len(t0):
        return Union(t0, t1)
    latest = np.maximum.accumulate(t1)
    begins = np.concatenate([[True], t0[1:] > latest[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(t0) - 1]])
    return Union(t0[begins], latest[last])


def union_of(parts: Sequence[Union]) -> Union:
    """The union of unions."""
    return union(
        np.concatenate([part.t0 for part in parts]), np.concatenate([part.t1 for part in parts])
    )


def exposed(layers: Sequence[Union]) -> list[int]:
    """What each layer covers and none before it does, in nanoseconds.

    Their sum is the length of the union of all layers.
    """
    covered, parts = 0, []
    for count in range(1, len(layers) + 1):
        together = union_of(layers[:count]).length
        parts.append(together - covered)
        covered = together
    return parts


@dataclass(frozen=True)
class Segments:
    """Disjoint intervals in order of time, each with the index of the interval that owns it."""

    t0: Times
    t1: Times
    owner: NDArray[np.int64]
    parent: NDArray[np.int64]
    """By interval, not by segment: the one around it, or -1."""

    def at(self, times: Times) -> NDArray[np.int64]:
        """The owner at each of ``times``; -1 where there is none."""
        if not len(self.t0):
            return np.full(len(times), -1, np.int64)
        place = np.searchsorted(self.t0, times, side="right") - 1
        inside = (place >= 0) & (times < self.t1[place])
        return np.where(inside, self.owner[place], -1)


def innermost(t0: Times, t1: Times) -> Segments:
    """Cut intervals that contain one another into segments, each owned by the innermost.

    What an operator owns is its self time: the time of the operators that it calls is theirs.
    Of two intervals that overlap without nesting, the one that begins later owns.
    """
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []
    parents = np.full(len(t0), -1, np.int64)
    stack: list[tuple[int, int]] = []  # end and index of the open intervals, innermost last
    reached = int(t0.min()) if len(t0) else 0

    def close(until: int) -> None:
        """Give the innermost open interval the time from ``reached`` to ``until``."""
        nonlocal reached
        if stack and until > reached:
            starts.append(reached)
            ends.append(until)
            owners.append(stack[-1][1])
        reached = max(reached, until)

    order = np.lexsort((-t1, t0))
    begins, finishes = t0[order].tolist(), t1[order].tolist()
    for index, begin, finish in zip(order.tolist(), begins, finishes, strict=True):
        while stack and stack[-1][0] <= begin:
            close(stack[-1][0])
            stack.pop()
        close(begin)
        if stack:
            parents[index] = stack[-1][1]
        stack.append((finish, index))
    while stack:
        close(stack[-1][0])
        stack.pop()
    return Segments(
        np.array(starts, np.int64), np.array(ends, np.int64), np.array(owners, np.int64), parents
    )
