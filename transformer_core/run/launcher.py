"""Starts the processes of a run, on one host or on several: the command, and the environment variables
that decide how fast they are and how much memory they keep."""

import ctypes.util
import os
import sys
from collections.abc import Mapping

from schemas.config.parallel import Allocator, CudaAllocator, Ddp, Link, LinkKind
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.machine.hardware import CUDA_VARIABLES, usable_cores
from transformer_core.run.gpu_leases import visible_gpus
from transformer_core.run.host_processes import (
    QUICK_START,
    Hosts,
    in_slurm_job,
    srun,
    this_host,
    torchrun,
    within_host,
)
from transformer_core.run.linked_hosts import Linked, refusal
from transformer_core.run.warm_start import THREADS


def launcher(spec: RunSpec, worker: str, place: int = 0, anew: bool = False) -> list[str]:
    """The start of the command line: Python for a single process, torchrun for more, or where there
    are no GPUs forks, which start faster (see
    :mod:`transformer_core.run.quick_start`).

    ``worker`` is the module that the processes run. Runs at the same time need a ``place`` of their
    own, which is added to the port of the rendezvous. With ``anew``, every process is a Python of
    its own that runs nothing but the worker, so that each can be started within another program.

    A run over several hosts is started

    - with ``machine.link``: on two hosts that are made on this machine;
    - by hand, or by srun on every host: on this one (see
      :mod:`transformer_core.run.host_processes`);
    - in a Slurm job: by srun, on all hosts of the job.

    Raises Unsupported where none of them is possible, or there is nothing to train.
    """
    spec.refuse_without_meaning()
    machine, processes = spec.machine, spec.processes_per_node
    if spec.parallel.one_process:
        return [sys.executable, "-m", *([] if anew else [QUICK_START]), worker]
    if machine.nodes == 1:
        if not anew and not uses_gpus(spec):
            return [sys.executable, "-m", QUICK_START, f"--fork={processes}", worker]
        start = [*torchrun(processes), "-m"]
        return [*start, *([] if anew else [QUICK_START]), worker]
    if machine.link is not None:
        linked = Linked(
            processes,
            machine.timeout,
            _link_kind(spec, machine.link),
            machine.link.bandwidth,
            _shared_gpus(spec),
        )
        return [*linked.command, worker]
    hosts = Hosts(machine.nodes, processes, machine.timeout, place)
    if this_host() is not None:
        return [*hosts.command, worker]
    if in_slurm_job():
        return [*srun(machine.nodes), *hosts.command, worker]
    raise Unsupported(
        f"needs {machine.nodes} hosts: submit it to Slurm, or start the same command on each of "
        "them with NODE_RANK (0, 1, ...) and RENDEZVOUS (host:port of the first) set"
    )


def lends_processes_only() -> bool:
    """Whether this host is not the first of a run: the first one writes the results."""
    host = this_host()
    return host is not None and host.node_rank > 0


def spans_machines(spec: RunSpec) -> bool:
    """Whether the run's processes are on several machines that share only a network."""
    return spec.machine.nodes > 1 and spec.machine.link is None


def uses_gpus(spec: RunSpec) -> bool:
    """Whether processes of the run use CUDA, or would if this host had GPUs."""
    device = spec.machine.device
    return device == "cuda" or (device == "auto" and bool(visible_gpus()))


def _link_kind(spec: RunSpec, link: Link) -> LinkKind:
    """How this host can emulate the link of ``spec``; Unsupported if it cannot."""
    reason = "machine.link.emulate" if link.emulate else refusal()
    if reason is None:
        return "namespaces"
    parallel = spec.parallel
    buckets = isinstance(parallel, Ddp) and parallel.overlap
    hook = parallel.message_hook
    if buckets and (hook is None or hook.by_backend):
        return "emulated"
    raise Unsupported(
        f"needs a link of limited bandwidth, which cannot be set up here ({reason}), and can be "
        "emulated only where DDP all-reduces its gradients, in buckets, during backward"
    )


def _shared_gpus(spec: RunSpec) -> list[str]:
    """The GPUs of this machine that its emulated hosts share out."""
    found = [] if spec.machine.device == "cpu" else visible_gpus()
    if not found and spec.machine.device != "cuda":
        return []
    if len(found) < spec.world_size:
        raise Unsupported(
            f"needs {spec.world_size} CUDA devices for two hosts on one machine, which has "
            f"{len(found)}"
        )
    return found


KEPT_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN keeps what it made, and torch's layer over it keeps it once more: memory is bounded where
both are (oneDNN, "Primitive Cache"; ideep, lru_cache.hpp)."""

_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""torch.profiler announces its start and stop to standard error, on every rank. All workers have
this, so that those that are profiled are forked from the same process as the others."""


_PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""For OpenMP: threads that wait for others sleep. By default they spin, and if another process runs
on the core of a thread that is waited for, every barrier lasts until the kernel takes turns. How
many threads there are, and what each computes, stays the same."""


def worker_environment(
    spec: RunSpec, given: Mapping[str, str], shares_cores: bool = False
) -> dict[str, str]:
    """The environment of the workers of ``spec``, from what was ``given`` to their job, if they are
    alone on their cores or ``shares_cores`` with others; the user's own settings of an allocator and
    of OpenMP come first. Unsupported where this host lacks the allocator."""
    allocator = allocator_environment(spec.machine.allocator)
    threads = str(threads_per_process(spec))
    # Processes of several hosts choose the interface on each of them.
    within = within_host(given) if spec.machine.nodes == 1 else {}
    cuda = cuda_allocator_environment(spec.machine.cuda_allocator, given)
    # Not the user's own: the run spec sets how many are kept.
    kept = spec.machine.kept_kernels
    kernels = dict.fromkeys(KEPT_KERNELS, str(kept)) if kept is not None else {}
    counts = dict.fromkeys(THREADS, threads)
    # A single thread waits for none: such workers are forked from the same process as timed ones.
    waiting = _PASSIVE if shares_cores and threads != "1" else {}
    return {**cuda, **_QUIET, **allocator, **waiting, **given, **within, **kernels, **counts}


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
