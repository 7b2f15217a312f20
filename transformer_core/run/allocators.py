"""Memory allocators of the processes of a run, chosen by environment variables.

Which one a run really had is read in its processes, and stands in its record of the hardware.
"""

import ctypes.util
from collections.abc import Mapping

from schemas.config.parallel import Allocator, CudaAllocator
from schemas.errors import Unsupported
from transformer_core.machine.process_settings import CUDA_VARIABLES

KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""For glibc: freed memory stays with the process. By default large blocks go back to the kernel and
come again at every step, by limits that each process moves as it goes: two processes of one run
spec then differ by several percent in speed. The user's own settings come first."""

_LIBRARIES = {"tcmalloc": ("tcmalloc", "tcmalloc_minimal"), "jemalloc": ("jemalloc",)}
_PACKAGES = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2"}


def allocator_environment(allocator: Allocator) -> dict[str, str]:
    """The environment variables that give a process this allocator.

    Raises Unsupported where its library is not installed.
    """
    match allocator:
        case "default":
            return {}
        case "kept":
            return dict(KEPT)
        case "huge_pages":
            # glibc 2.35 or newer; Linux grants them also where it says "madvise".
            return KEPT | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        case "tcmalloc" | "jemalloc":
            settings = {"LD_PRELOAD": _library(allocator)}
            if allocator == "jemalloc":  # freed memory stays with the process
                settings["MALLOC_CONF"] = "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"
            return settings


def cuda_allocator_environment(
    allocator: CudaAllocator, given: Mapping[str, str]
) -> dict[str, str]:
    """The environment variables that give a process this allocator on CUDA devices; none where the
    user's own are ``given``, of whatever name.

    Batches of many shapes leave torch's allocator with blocks that fit none of the next; segments
    that grow do not fall apart (PyTorch, "Optimizing memory usage with PYTORCH_ALLOC_CONF").
    """
    if allocator == "default" or any(name in given for name in CUDA_VARIABLES):
        return {}
    return {CUDA_VARIABLES[0]: "expandable_segments:True"}


def _library(allocator: str) -> str:
    found = (ctypes.util.find_library(name) for name in _LIBRARIES[allocator])
    name = next(filter(None, found), None)
    if name is None:
        raise Unsupported(
            f"needs {allocator}, which is not installed on this host: "
            f"apt-get install {_PACKAGES[allocator]}, or take machine.allocator: kept"
        )
    return name
