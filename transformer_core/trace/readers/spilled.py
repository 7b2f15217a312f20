"""Memory that is a file: what is larger than a few megabytes waits there, and comes back in parts.

The files have no name and vanish with the process. They lie where temporary files do (``TMPDIR``);
where that has no room, memory is taken instead.
"""

import mmap
import os
import tempfile
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
