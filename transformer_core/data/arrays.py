"""Array operations that replace loops over pairs, and an ordered map over workers."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array."""

    values: NDArray[Any]
    """The values of all rows, followed by at least as many further values as the longest row has,
    plus one: every row can be read at the length of the longest plus one."""
    starts: Integers  # [rows] index in ``values`` where each row begins
    lengths: NDArray[np.int32]  # [rows] number of values in each row

    @classmethod
    def join(cls, chunks: Sequence[NDArray[Any]], lengths: NDArray[np.int32]) -> "Ragged":
        """Joins ``chunks``, which hold the values of rows of these ``lengths`` in order."""
        slack = np.zeros(int(lengths.max(initial=0)) + 1, chunks[0].dtype if chunks else np.uint8)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        return cls(np.concatenate([*chunks, slack]), starts, lengths)

    def take(self, rows: slice | Integers) -> "Ragged":
        """Selects rows without copying their values."""
        return Ragged(self.values, self.starts[rows], self.lengths[rows])

    def flat(self) -> NDArray[Any]:
        """[sum(lengths)] the values of all rows in order, without gaps."""
        return self.values[ranges(self.starts, self.lengths)]

    def __len__(self) -> int:
        return len(self.starts)


def ranges(starts: Integers, lengths: NDArray[np.integer]) -> Integers:
    """[sum(lengths)] the numbers of n consecutive ranges, which begin at ``starts`` [n] and have
    ``lengths`` [n]; a range may be empty."""
    ends = np.cumsum(lengths, dtype=np.int64)
    if not len(ends):
        return np.empty(0, np.int64)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1], dtype=np.int64)


def group_sums(values: NDArray[np.integer], starts: Integers) -> Integers:
    """[n] sum of each group ``values[starts[i]:starts[i + 1]]``; a group may be empty."""
    before = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return before[starts[1:]] - before[starts[:-1]]


def group_maxima(values: NDArray[np.integer], starts: Integers) -> Integers:
    """[n] largest of each group ``values[starts[i]:starts[i + 1]]``; 0 for an empty group."""
    maxima = np.zeros(len(starts) - 1, np.int64)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        maxima[filled] = np.maximum.reduceat(values, starts[filled])
    return maxima


def evenly_spaced(total: int, count: int) -> Integers:
    """At most ``count`` different numbers of 0 … total - 1, evenly spaced and ascending."""
    kept = min(total, count)
    return np.arange(kept, dtype=np.int64) * total // max(kept, 1)


def utf8(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], Integers]:
    """The bytes of n texts, and [n + 1] their limits in these bytes; both are views."""
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    # Compilers treat writable and read-only arrays as different types, so we always give the latter.
    for array in (data, offsets):
        array.flags.writeable = False
    return data, offsets


Counts = dict[int, int]  # sentences by length, shortest first


def count_lengths(lengths: NDArray[np.integer]) -> Counts:
    """How often each of ``lengths`` [n] occurs."""
    values, counts = np.unique(lengths, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def add_counts(parts: Iterable[Counts]) -> Counts:
    """Adds up the counts of several parts."""
    return dict(sorted(sum(map(Counter, parts), Counter[int]()).items()))


T = TypeVar("T")
R = TypeVar("R")


def in_order(
    workers: Executor, function: Callable[[T], R], items: Iterable[T], ahead: int
) -> Iterator[R]:
    """``map(function, items)`` with at most ``ahead`` items in progress at a time.

    ``Executor.map`` would consume all items at once.
    """
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(workers.submit(function, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
