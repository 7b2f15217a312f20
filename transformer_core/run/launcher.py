"""How the processes of a run are started, on one host or several: the command, and the environment
variables that determine their speed and the memory they keep."""

import ctypes.util
import os
import sys
from collections.abc import Mapping

from schemas.config.parallel import Allocator, CudaAllocator, Ddp, Link, LinkKind
from schemas.config.run_spec import RunSpec
from schemas.errors import Refusal, Unsupported
from transformer_core.machine.hardware import CUDA_VARIABLES, usable_cores
from transformer_core.parallel.nvml import visible_gpus
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


def launcher(spec: RunSpec, worker: str, place: int = 0, fresh: bool = False) -> list[str]:
    """The start of the command line: Python for one process; for several torchrun or, without GPUs,
    forks, which start faster (see :mod:`transformer_core.run.quick_start`).

    ``worker`` is the module that the processes run. Simultaneous runs need different values of
    ``place``, which is added to the port of the rendezvous. With ``fresh``, every process is a new
    Python that runs only the worker, so that each can be started within another program.

    Runs over several hosts are started

    - with ``machine.link``: on two emulated hosts on this machine;
    - if started by hand or by srun on every host: on this host (see
      :mod:`transformer_core.run.host_processes`);
    - in a Slurm job: by srun, on all hosts of the job.

    Raises Unsupported if none of these is possible, or there is nothing to train.
    """
    spec.refuse_without_meaning()
    machine, processes = spec.machine, spec.processes_per_node
    if spec.parallel.one_process:
        if machine.nodes > 1:
            raise Unsupported(
                f"{spec.parallel.kind} drives the GPUs of one host from one process, but machine.nodes "
                f"is {machine.nodes}: use nodes: 1, or another strategy (parallel.kind)"
            )
        return [sys.executable, "-m", *([] if fresh else [QUICK_START]), worker]
    if machine.nodes == 1:
        if not fresh and not uses_gpus(spec):
            return [sys.executable, "-m", QUICK_START, f"--fork={processes}", worker]
        start = [*torchrun(processes), "-m"]
        return [*start, *([] if fresh else [QUICK_START]), worker]
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
    if (host := this_host()) is not None:
        if (number := host.node_rank) >= machine.nodes:
            raise Refusal(f"NODE_RANK = {number}: number the hosts from 0 to {machine.nodes - 1}")
        return [*hosts.command, worker]
    if in_slurm_job():
        return [*srun(machine.nodes), *hosts.command, worker]
    raise Unsupported(
        f"needs {machine.nodes} hosts: submit it to Slurm, or start the same command on each of "
        "them with NODE_RANK (0, 1, ...) and RENDEZVOUS (host:port of the first) set"
    )


def lends_processes_only() -> bool:
    """Whether this host is one of several but not the first, which writes the results."""
    host = this_host()
    return host is not None and host.node_rank > 0


def spans_machines(spec: RunSpec) -> bool:
    """Whether the run's processes are on several machines, which share only a network."""
    return spec.machine.nodes > 1 and spec.machine.link is None


def uses_gpus(spec: RunSpec) -> bool:
    """Whether the run's processes use CUDA: on request, or by default if this host has GPUs."""
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
    """The GPUs of this machine, which its emulated hosts divide among themselves."""
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
"""oneDNN caches its kernels, and torch's layer above caches them again: bounding the memory takes
both limits (oneDNN, "Primitive Cache"; ideep, lru_cache.hpp)."""

_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""torch.profiler announces its start and stop on standard error, on every rank. All workers have
this setting, so that profiled ones are forked from the same server as the others."""


_PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""Makes waiting threads of OpenMP sleep. By default they spin: if another process occupies the core
of a thread that they wait for, every barrier lasts until the kernel switches. The number of threads
and their work stay the same."""


def worker_environment(
    spec: RunSpec, given: Mapping[str, str], shares_cores: bool = False
) -> dict[str, str]:
    """The environment of the workers of ``spec``, based on the one ``given`` to their job. The user's
    own settings of allocators and OpenMP take precedence. ``shares_cores`` tells whether other jobs
    may use the same cores. Unsupported if this host lacks the allocator."""
    allocator = allocator_environment(spec.machine.allocator)
    threads = str(threads_per_process(spec))
    # With several hosts, each host chooses its interface.
    within = within_host(given) if spec.machine.nodes == 1 else {}
    cuda = cuda_allocator_environment(spec.machine.cuda_allocator, given)
    if given.get("LD_PRELOAD") and "LD_PRELOAD" in allocator:
        # Both: the user's libraries alone would silently undo the run spec's allocator.
        libraries = f"{allocator['LD_PRELOAD']}:{given['LD_PRELOAD']}"
        given = {**given, "LD_PRELOAD": libraries}
    # Overrides the user's environment: the run spec sets the number.
    kept = spec.machine.kept_kernels
    kernels = dict.fromkeys(KEPT_KERNELS, str(kept)) if kept is not None else {}
    counts = dict.fromkeys(THREADS, threads)
    # A single thread never waits, so these workers use the same server as timed ones.
    waiting = _PASSIVE if shares_cores and threads != "1" else {}
    return {**cuda, **_QUIET, **allocator, **waiting, **given, **within, **kernels, **counts}


def threads_per_process(spec: RunSpec) -> int:
    """CPU threads of each process: the spec's number, else an even share of the cores.

    If Snakemake gave the job fewer cores, OMP_NUM_THREADS says how many.
    """
    cores = usable_cores()
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cores, int(given)) if given.isdigit() and int(given) else cores
    return spec.machine.threads or max(1, cores // spec.processes_per_machine)


KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""Makes glibc keep freed memory in the process. By default it returns large blocks to the kernel and
requests them again in every step, by thresholds that each process adapts: two processes of one run
spec then differ in speed by several percent. The user's own settings take precedence."""

_LIBRARIES = {"tcmalloc": ("tcmalloc", "tcmalloc_minimal"), "jemalloc": ("jemalloc",)}
_PACKAGES = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2"}


def allocator_environment(allocator: Allocator) -> dict[str, str]:
    """The environment variables that select this allocator.

    Raises Unsupported if its library is not installed.
    """
    match allocator:
        case "default":
            return {}
        case "kept":
            return dict(KEPT)
        case "huge_pages":
            # Takes glibc 2.35 or newer; works with Linux's settings "always" and "madvise".
            return KEPT | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        case "tcmalloc" | "jemalloc":
            settings = {"LD_PRELOAD": _library(allocator)}
            if allocator == "jemalloc":  # freed memory stays with the process
                settings["MALLOC_CONF"] = "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"
            return settings


def cuda_allocator_environment(
    allocator: CudaAllocator, given: Mapping[str, str]
) -> dict[str, str]:
    """The environment variables that select this allocator on CUDA devices; none if the user has
    ``given`` their own, under any of the names.

    Batches of many shapes leave torch's allocator with blocks too small for the next batch;
    expandable segments do not fragment (PyTorch, "Optimizing memory usage with
    PYTORCH_ALLOC_CONF").
    """
    if allocator == "default" or any(name in given for name in CUDA_VARIABLES):
        return {}
    return dict.fromkeys(CUDA_VARIABLES[:2], "expandable_segments:True")


def _library(allocator: str) -> str:
    found = (ctypes.util.find_library(name) for name in _LIBRARIES[allocator])
    name = next(filter(None, found), None)
    if name is None:
        raise Unsupported(
            f"needs {allocator}, which is not installed on this host: "
            f"apt-get install {_PACKAGES[allocator]}, or set machine.allocator: kept"
        )
    return name
