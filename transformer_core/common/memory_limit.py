"""A limit on the memory that a block may take."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Within the block, this process cannot take more than ``size`` additional bytes: asking for
    more raises MemoryError before the host runs out. Linux only: elsewhere the system does not
    count the memory that libraries take."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = _taken() + size
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _taken() -> int:
    """Bytes of this process that the limit counts, and its stack, which it does not."""
    return int(Path("/proc/self/statm").read_bytes().split()[5]) * os.sysconf("SC_PAGE_SIZE")
