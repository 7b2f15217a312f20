"""Calls that fail: opening, writing, renaming, mapping and making folders, below one folder.

They are replaced where Python calls the system, so that no library has to be built. Calls that
libraries make by themselves are not among them.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES)


class Calls:
    """Counts calls on files below ``folder``, and lets the one with the number ``fails`` fail."""

    def __init__(self, folder: Path, fails: int = -1, number: int = errno.EIO) -> None:
        self.folder = str(folder)
        self.fails = fails
        self.number = number
        self.count = 0

    def call(self, path: Any) -> None:
        """One more call on ``path``; OSError if it is the one that fails."""
        if isinstance(path, int) or not str(path).startswith(self.folder):
            return
        self.count += 1
        if self.count - 1 == self.fails:
            raise OSError(self.number, os.strerror(self.number), str(path))


class _Written:
    """A file whose every write is a call."""

    def __init__(self, file: Any, path: Any, calls: Calls) -> None:
        self._file, self._path, self._calls = file, path, calls

    def write(self, content: Any) -> Any:
        self._calls.call(self._path)
        return self._file.write(content)

    def __enter__(self) -> "_Written":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def failing(calls: Calls) -> Iterator[None]:
    """Let ``calls`` see what happens below its folder."""
    real_open = io.open

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        calls.call(path)
        file = real_open(path, mode, *rest, **options)
        writes = isinstance(path, str | Path) and str(path).startswith(calls.folder)
        return _Written(file, path, calls) if writes and set(mode) & set("wax+") else file

    places: list[tuple[Any, str, Callable[..., Any]]] = [(io, "open", opened)]
    for owner, name in ((os, "replace"), (os, "mkdir"), (pa, "memory_map"), (pa, "OSFile")):
        places.append((owner, name, _counted(getattr(owner, name), calls)))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, stand_in in places:
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


def _counted(real: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def call(path: Any, *rest: Any, **options: Any) -> Any:
        calls.call(path)
        return real(path, *rest, **options)

    return call
