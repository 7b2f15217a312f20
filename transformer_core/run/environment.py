"""Environment variables that decide how fast workers are and how much memory they keep: allocator,
threads, kernels."""

import ctypes.util
import os
from collections.abc import Mapping

from schemas.config.parallel import Allocator, CudaAllocator
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.machine.hardware import usable_cores
from transformer_core.machine.process_settings import CUDA_VARIABLES
from transformer_core.run.host_processes import within_host
from transformer_core.run.warm_start import THREADS

KEPT_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN keeps what it made, and torch's layer over it keeps it once more: memory is bounded where
both are (oneDNN, "Primitive Cache"; ideep, lru_cache.hpp)."""

_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""torch.profiler announces its start and stop to standard error, on every rank. All workers have
this, so that those that are profiled are forked from the same process as the others."""


def worker_environment(spec: RunSpec, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the workers of ``spec``, from what was ``given`` to their job; the user's
    own settings of an allocator come first. Unsupported where this host lacks the allocator."""
    allocator = allocator_environment(spec.machine.allocator)
    threads = str(threads_per_process(spec))
    # Processes of several hosts choose the interface on each of them.
    within = within_host(given) if spec.machine.nodes == 1 else {}
    cuda = cuda_allocator_environment(spec.machine.cuda_allocator, given)
    # Not the user's own: the run spec sets how many are kept.
    kept = spec.machine.kept_kernels
    kernels = dict.fromkeys(KEPT_KERNELS, str(kept)) if kept is not None else {}
    counts = dict.fromkeys(THREADS, threads)
    return {**cuda, **_QUIET, **allocator, **given, **within, **kernels, **counts}


def threads_per_process(spec: RunSpec) -> int:
    """CPU threads for each process: as the spec says, else an even share of the cores.

    A job that Snakemake gave fewer cores says so in OMP_NUM_THREADS.
    """
    sharing = spec.world_size if spec.machine.link else spec.processes_per_node
    cores = usable_cores()
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cores, int(given)) if given.isdigit() and int(given) else cores
    return spec.machine.threads or max(1, cores // sharing)


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
