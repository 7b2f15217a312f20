"""Compact columns for millions of events: a few bytes a value, every text once.

Beyond a few megabytes they wait in a file without a name, which vanishes with the process, and come
back in parts. It lies where temporary files do (``TMPDIR``); without room there, they stay in memory.
"""

import os
import tempfile
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NULL = -(2**63)  # stands for null in columns of integers
_BLOCK = 1 << 15  # rows that are packed at once
_IN_MEMORY = 4 << 20
"""Bytes of packed columns that a process keeps in memory before it begins to write."""


def or_null(value: int | None) -> int:
    """``value`` as a column holds it; null for one that has no room in it."""
    return NULL if value is None or abs(value) > -(NULL + 1) else value


def nulls(count: int) -> Integers:
    return np.full(count, NULL, np.int64)


def distinct(values: Integers) -> tuple[Integers, NDArray[np.int64]]:
    """The values that there are, in order, and for each row the place of its value among them.

    ``np.unique`` with its inverse, which sorts; small numbers, as those of names are, need not be.
    """
    there = values != NULL
    known = values if there.all() else values[there]
    if not len(known) or known.min() < 0 or known.max() > len(known) + 1024:
        present, place = np.unique(values, return_inverse=True)
        return present, place
    present = np.flatnonzero(np.bincount(known))
    table = np.empty(int(present[-1]) + 1, np.int64)
    if len(known) == len(values):
        table[present] = np.arange(len(present))
        return present, table[values]
    table[present] = np.arange(1, len(present) + 1)
    place = np.zeros(len(values), np.int64)
    place[there] = table[known]
    return np.append(NULL, present), place


class Names(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self.texts)
        self.texts.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Integers:
        return np.fromiter(map(self.__getitem__, texts), np.int64)


class Spill:
    """A file to which arrays are added, and from which each is read as often as one likes."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._room, self._end = in_memory, 0
        self._file: Any = None

    def keep(self, values: NDArray) -> "NDArray | Spilled":
        self._room -= values.nbytes
        if self._room >= 0:
            return values
        try:
            self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives on
            written = os.pwrite(self._file.fileno(), values.tobytes(), self._end)
        except OSError:
            return values
        if written < values.nbytes:
            return values
        self._end += written
        return Spilled(self._file, self._end - written, values.dtype, len(values))


@dataclass(frozen=True)
class Spilled:
    """An array in a file; it travels to another process as itself."""

    file: Any
    begin: int
    kind: np.dtype
    count: int

    def read(self) -> NDArray:
        size = self.count * self.kind.itemsize
        return np.frombuffer(os.pread(self.file.fileno(), size, self.begin), self.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return _spilled_again, (self.read(),)


@cache
def spill() -> Spill:
    return Spill()


def _spilled_again(values: NDArray) -> "NDArray | Spilled":
    return spill().keep(values)


class Packed:
    """Integers in as few bytes as their range needs: what they are above the least of them."""

    def __init__(self, values: Integers) -> None:
        known = values[values != NULL]
        self.count = len(values)
        self._least = int(known.min()) if len(known) else NULL
        # Null is stored as 0, and all others one higher.
        self._gaps = 0 < len(known) < len(values)
        span = int(known.max()) - self._least + self._gaps if len(known) else 0
        self._data: NDArray | Spilled | None = None
        kind = next((k for k in (np.uint8, np.uint16, np.uint32) if span <= np.iinfo(k).max), None)
        if kind is None:
            self._least, self._gaps = 0, False
            self._data = spill().keep(values.copy())
        elif span:
            data = (values - (self._least - self._gaps)).astype(kind)
            data[values == NULL] = 0
            self._data = spill().keep(data)

    def values(self) -> Integers:
        if self._data is None:
            return np.full(self.count, self._least, np.int64)
        data = self._data.read() if isinstance(self._data, Spilled) else self._data
        found = data.astype(np.int64)
        found += self._least - self._gaps
        if self._gaps:
            found[data == 0] = NULL
        return found


class Columns:
    """Rows of integers, kept by column: the last of them as they are, those before packed."""

    def __init__(self, *names: str) -> None:
        self._packed: dict[str, list[Packed]] = {name: [] for name in names}
        self._last = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        for column, value in zip(self._last.values(), values, strict=True):
            column.append(value)
        self._pack_some()

    def extend(self, count: int, **values: Integers | int) -> None:
        """Many rows; a column for which there is one number has it in all, one not named null."""
        for name, column in self._last.items():
            found = values.pop(name, NULL)
            if isinstance(found, int):
                found = np.full(count, found, np.int64)
            assert len(found) == count, name
            column.frombytes(np.ascontiguousarray(found, np.int64).view(np.uint8).data)
        assert not values, f"no such columns: {', '.join(values)}"
        self._pack_some()

    def _pack_some(self) -> None:
        if len(next(iter(self._last.values()))) >= _BLOCK:
            for name, column in self._last.items():
                self._pack(name, np.frombuffer(column, np.int64))

    def _pack(self, name: str, values: Integers) -> None:
        begins = range(0, len(values), _BLOCK)
        self._packed[name] += [Packed(values[begin : begin + _BLOCK]) for begin in begins]
        self._last[name] = array("q")

    def replace(self, name: str, values: Integers) -> None:
        """Give a column other values, as many as all others have."""
        self._packed[name] = []
        self._pack(name, values)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        for name in self._packed:
            self.replace(name, self[name][mask])

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def __len__(self) -> int:
        return self._count(next(iter(self._packed)))

    def _count(self, name: str) -> int:
        return sum(part.count for part in self._packed[name]) + len(self._last[name])

    def __getitem__(self, name: str) -> Integers:
        return self.stretch(name, 0, self._count(name))

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Begins and ends of stretches of rows that are few enough to be unpacked at once."""
        count = len(self)
        for begin in range(0, count, _BLOCK):
            yield begin, min(begin + _BLOCK, count)

    def stretch(self, name: str, begin: int, end: int) -> Integers:
        """The values of a column from one row up to another."""
        found, at = np.empty(end - begin, np.int64), 0
        parts: list[Packed | array[int]] = [*self._packed[name], self._last[name]]
        for part in parts:
            count = part.count if isinstance(part, Packed) else len(part)
            first, last = max(begin, at), min(end, at + count)
            if first < last:
                values = part.values() if isinstance(part, Packed) else np.array(part, np.int64)
                found[first - begin : last - begin] = values[first - at : last - at]
            at += count
        return found

    def take(self, name: str, places: Integers) -> Integers:
        """The values of a column at places in any order, without the others."""
        found = np.empty(len(places), np.int64)
        order = np.argsort(places, kind="stable")
        wanted = places[order]
        for begin, end in self.stretches():
            first, last = np.searchsorted(wanted, (begin, end))
            if first < last:
                values = self.stretch(name, begin, end)
                found[order[first:last]] = values[wanted[first:last] - begin]
        return found

    def distinct(self, name: str) -> list[int]:
        parts = [np.unique(self.stretch(name, *edges)) for edges in self.stretches()]
        return np.unique(np.concatenate(parts)).tolist() if parts else []

    def places(self, name: str, wanted: Collection[int]) -> Integers:
        """The rows where a column has one of some values."""
        parts = [
            begin + np.flatnonzero(np.isin(self.stretch(name, begin, end), list(wanted)))
            for begin, end in self.stretches()
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)
