"""What workers find in their environment that decides how fast they are and how much memory they
keep: allocator, threads, kernels."""

import os
from collections.abc import Mapping

from schemas.config.run_spec import RunSpec
from transformer_core.machine.hardware import usable_cores
from transformer_core.run.allocators import (
    allocator_environment,
    cuda_allocator_environment,
)
from transformer_core.run.hosts.interfaces import within_host
from transformer_core.run.warm_starts.thread_variables import THREADS

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
    # Not the user's own: how many are kept stands in the run spec.
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
