"""Pages of files that a process has in memory. A fork has its parent's data, but what it has mapped
of files, most of it the code of libraries, it finds again page by page; so it would seem to be
smaller than a new process, which has read them while it imported.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHANGES_NO_RESULT = True  # it makes a fork as large as a new process is

Pages = Sequence[tuple[int, int]]
"""Runs of pages: address and number."""

_SIZE = 4096
_PRESENT, _OF_FILE = 1 << 63, 1 << 61
"""Bits of an entry of /proc/<pid>/pagemap (Linux, Documentation/admin-guide/mm/pagemap.rst)."""


_AT_ONCE = 2048
"""Entries that are looked at: large blocks of memory, once freed, change the limits by which
glibc's allocator goes on."""


def file_pages() -> Pages:
    """The pages of files that this process has in memory and has not changed."""
    found: list[tuple[int, int]] = []
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access, *_, name = line.split(maxsplit=5) if "/" in line else ("", "", "")
            if access.startswith("r") and name.startswith("/"):
                start, end = (int(address, 16) // _SIZE for address in span.split("-"))
                for first in range(start, end, _AT_ONCE):
                    pagemap.seek(first * 8)
                    entries = pagemap.read(min(_AT_ONCE, end - first) * 8)
                    found += _runs(first, np.frombuffer(entries, np.uint64))
    return found


def _runs(first: int, entries: npt.NDArray[np.uint64]) -> Pages:
    """Runs of pages of files among the entries of pages from ``first`` on."""
    wanted = np.uint64(_PRESENT | _OF_FILE)
    there = (entries & wanted) == wanted
    edges = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0))
    return [((first + int(a)) * _SIZE, int(b - a)) for a, b in edges.reshape(-1, 2)]


def map_pages(pages: Pages) -> None:
    """Read a byte of each page."""
    for address, number in pages:
        run = (ctypes.c_ubyte * (number * _SIZE)).from_address(address)
        int(np.frombuffer(memoryview(run).cast("B"), np.uint8)[::_SIZE].sum())
