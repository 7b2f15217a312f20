"""Compact columns for millions of events: a few bytes a value, every text once.

What is larger than a few megabytes waits in files without a name, which vanish with the process, and
comes back in parts. They lie where temporary files do (``TMPDIR``); where that has no room, memory is
taken instead.
"""

import mmap
import os
import tempfile
from array import array
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NULL = -(2**63)
"""Stands for null in columns of integers."""

_BLOCK = 1 << 15
"""Rows that are packed at once."""


def or_null(value: int | None) -> int:
    """``value`` as a column holds it; null for one that has no room in it."""
    return NULL if value is None or abs(value) > -(NULL + 1) else value


def nulls(count: int) -> Integers:
    """A column without values."""
    return filled(count, NULL)


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
    """Distinct texts, numbered in order of appearance: ``names[text]`` is the number."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self.texts)
        self.texts.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Integers:
        """The numbers of many texts."""
        return np.fromiter(map(self.__getitem__, texts), np.int64)


class Packed:
    """Integers in as few bytes as their range needs: what they are above the least of them."""

    def __init__(self, values: Integers) -> None:
        known = values[values != NULL] if (values == NULL).any() else values
        self.count = len(values)
        self._least = int(known.min()) if len(known) else NULL
        most = int(known.max()) if len(known) else NULL
        gaps = len(known) < len(values)
        self._null = 0 if gaps and len(known) else None
        """The stored value that stands for null, if any."""
        self._data: Kept | None = None
        if most == self._least and self._null is None:
            return  # one value in all rows
        first = 0 if self._null is None else 1
        span = most - self._least + first
        kind = next((k for k in (np.uint8, np.uint16, np.uint32) if span <= np.iinfo(k).max), None)
        if kind is None:
            self._data, self._null = spill().keep(values.copy()), None
            self._least = 0
            return
        data = (values - (self._least - first)).astype(kind)
        if self._null is not None:
            data[values == NULL] = self._null
        self._data = spill().keep(data)

    def into(self, found: Integers) -> None:
        """Write the values to an array of the same length."""
        if self._data is None:
            found[:] = self._least
            return
        data = self._data.read()
        if self._null is None:
            np.add(data, self._least, out=found, casting="unsafe", dtype=np.int64)
        else:
            np.add(data, self._least - 1, out=found, casting="unsafe", dtype=np.int64)
            found[data == self._null] = NULL


def _blocks(values: Integers) -> list[Packed]:
    return [Packed(values[begin : begin + _BLOCK]) for begin in range(0, len(values), _BLOCK)]


def _overlay(found: Integers, begin: int, values: Integers, at: int) -> None:
    """Write values that begin at row ``at`` over those of the rows from ``begin`` on."""
    first, last = max(begin, at), min(begin + len(found), at + len(values))
    found[first - begin : last - begin] = values[first - at : last - at]


class Columns:
    """Rows of integers, kept by column: the last of them as they are, those before packed."""

    def __init__(self, *names: str) -> None:
        self._packed: dict[str, list[Packed]] = {name: [] for name in names}
        self._last = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        """A row, in the order of the columns."""
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

    def replace(self, name: str, values: Integers) -> None:
        """Give a column other values, as many as all others have."""
        self._packed[name] = _blocks(values)
        self._last[name] = array("q")

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Leave out the rows where ``mask`` is false."""
        for name in self._packed:
            self.replace(name, self[name][mask])

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def __len__(self) -> int:
        packed, last = next(iter(self._packed.values())), next(iter(self._last.values()))
        return sum(part.count for part in packed) + len(last)

    def __getitem__(self, name: str) -> Integers:
        """The values of a column, made anew."""
        packed, last = self._packed[name], self._last[name]
        found = roomy(sum(part.count for part in packed) + len(last))
        begin = 0
        for part in packed:
            part.into(found[begin : begin + part.count])
            begin += part.count
        if last:
            found[begin:] = np.frombuffer(last, np.int64)
        return found

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Begins and ends of stretches of rows that are few enough to be unpacked at once."""
        count = len(self)
        for begin in range(0, count, _BLOCK):
            yield begin, min(begin + _BLOCK, count)

    def stretch(self, name: str, begin: int, end: int) -> Integers:
        """The values of a column from one row up to another."""
        found, at = np.empty(end - begin, np.int64), 0
        for part in self._packed[name]:
            if at < end and at + part.count > begin:
                values = np.empty(part.count, np.int64)
                part.into(values)
                _overlay(found, begin, values, at)
            at += part.count
        if at < end:
            _overlay(found, begin, np.array(self._last[name], np.int64), at)
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
        """The values that a column has, in order."""
        parts = [np.unique(self.stretch(name, *edges)) for edges in self.stretches()]
        return np.unique(np.concatenate(parts)).tolist() if parts else []

    def places(self, name: str, wanted: Collection[int]) -> Integers:
        """The rows where a column has one of some values."""
        parts = [
            begin + np.flatnonzero(np.isin(self.stretch(name, begin, end), list(wanted)))
            for begin, end in self.stretches()
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _pack_some(self) -> None:
        if len(next(iter(self._last.values()))) < _BLOCK:
            return
        for name, column in self._last.items():
            self._packed[name] += _blocks(np.frombuffer(column, np.int64))
            self._last[name] = array("q")


_IN_MEMORY = 4 << 20
"""Bytes of packed columns that a process keeps in memory before it begins to write."""
_LARGE = 1 << 20
"""Bytes of an array that is worth a file of its own."""


class Spill:
    """A file to which arrays are added and from which each is read as often as one likes."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._room = in_memory
        self._file: Any = None
        self._end = 0

    def keep(self, values: NDArray) -> "Kept":
        """Take an array."""
        self._room -= values.nbytes
        if self._room >= 0:
            return Kept(values.dtype, len(values), values)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives on
            data, begin = values.tobytes(), self._end
            if os.pwrite(self._file.fileno(), data, begin) < len(data):
                return Kept(values.dtype, len(values), values)
        except OSError:
            return Kept(values.dtype, len(values), values)
        self._end += len(data)
        return Kept(values.dtype, len(values), None, self._file, begin)


class Kept:
    """An array in memory or in a file."""

    def __init__(
        self, kind: np.dtype, count: int, values: NDArray | None, file: Any = None, begin: int = 0
    ) -> None:
        self._kind, self._count, self._values = kind, count, values
        self._file, self._begin = file, begin

    def read(self) -> NDArray:
        """The array, which is not to be changed."""
        if self._values is not None:
            return self._values
        size = self._count * self._kind.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), size, self._begin), self._kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return _kept_again, (self.read(),)


@cache
def spill() -> Spill:
    """That of this process."""
    return Spill()


def _kept_again(values: NDArray) -> Kept:
    return spill().keep(values)


def roomy(count: int, kind: Any = np.int64) -> NDArray:
    """A new array for ``count`` numbers, which is a file if it is large: the system may write it
    out where memory is short, as it cannot other memory."""
    size = count * np.dtype(kind).itemsize
    if size < _LARGE:
        return np.empty(count, kind)
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), kind)
    except OSError:
        return np.empty(count, kind)


def picked(values: NDArray, places: NDArray[np.int64] | slice) -> NDArray:
    """``values[places]``, in such an array."""
    if isinstance(places, slice) or values.dtype == object:
        return values[places]
    # With the mode "raise" numpy would buffer all of it; places are known to lie within.
    return np.take(values, places, out=roomy(len(places), values.dtype), mode="wrap")


def filled(count: int, value: int) -> NDArray[np.int64]:
    """Such an array with one number in all places."""
    found = roomy(count)
    found[:] = value
    return found


def moved(values: NDArray) -> NDArray:
    """The same numbers in such an array."""
    if values.nbytes < _LARGE:
        return values
    found = roomy(len(values), values.dtype)
    found[:] = values
    return found
