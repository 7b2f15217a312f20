"""Settings of a process that trains: threads, and cores of its own.

A thread that the system moves to another core loses what its cache holds, and a rank that shares a
core with another waits for it. torch has no switch for this; OpenMP's environment variables
(OMP_PROC_BIND) bind the first thread of a process, too, and with it all that it starts later, those
that prepare batches or send messages, to one core.
"""

import os
import sys
from pathlib import Path

import torch

from schemas.config.parallel import Machine
from schemas.errors import Unsupported
from transformer_core.common.progress import log

_THREADS = Path("/proc/self/task")
_WORTH_A_THREAD = 2**16
"""Elements; below half of that torch starts no second thread (ATen, GRAIN_SIZE)."""


def bind_threads(place: int, places: int) -> None:
    """Let this process, number ``place`` of ``places`` on its host, run on cores that no other of
    them takes, as many as it has threads, and each thread that torch starts beside the first on one
    of these. Threads that begin later run on any core of the process.

    Unsupported where there are fewer cores than threads, or nothing binds them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise Unsupported("machine.affinity: cores needs Linux: this system binds no threads")
    threads, cores = torch.get_num_threads(), sorted(os.sched_getaffinity(0))
    if places * threads > len(cores):
        raise Unsupported(
            f"machine.affinity: cores needs a core for each thread: {places} processes of "
            f"{threads} threads on a host where they may run on {len(cores)} cores; "
            "take machine.affinity: none, or fewer machine.threads"
        )
    share = core_share(cores, place, places, threads)
    before = _threads()
    for thread in before:
        _bind(thread, share)
    torch.ones(threads * _WORTH_A_THREAD)  # torch starts its threads when it first needs them
    started = sorted(_threads() - before)
    # Other threads may have started meanwhile: then torch's cannot be told apart.
    if len(started) == threads - 1:
        for thread, core in zip(started, share[1:], strict=True):
            _bind(thread, [core])


def core_share(cores: list[int], place: int, places: int, threads: int) -> list[int]:
    """The cores of process ``place`` of ``places``: the last ones of the host, as processes have
    them that take turns (:mod:`transformer_core.machine.hardware`)."""
    taken = cores[len(cores) - places * threads :]
    return taken[place * threads :][:threads]


def _threads() -> set[int]:
    return {int(thread.name) for thread in _THREADS.iterdir()}


def _bind(thread: int, cores: list[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return  # it ended just now


SWITCH_SECONDS = 0.0005
"""How long the thread that prepares batches may keep the interpreter from the one that launches
kernels, each of which takes some microseconds; Python's own choice is 5 ms."""


def settle(device: torch.device, machine: Machine, place: int, places: int) -> None:
    """Take the threads and cores that ``machine`` says for work on ``device``, as process number
    ``place`` of the ``places`` on this host; where that is a GPU, threads take turns often.

    Unsupported where this process cannot have what ``machine`` says.
    """
    if machine.cuda_allocator != "expandable_segments" and device.type != "cuda":
        raise Unsupported(
            f"machine.cuda_allocator: {machine.cuda_allocator} is about memory of CUDA devices; "
            f"this run is on a {device.type.upper()}"
        )
    if machine.threads:
        torch.set_num_threads(machine.threads)
    if machine.affinity == "cores":
        bind_threads(place, places)
    if device.type == "cuda":
        sys.setswitchinterval(SWITCH_SECONDS)
        take_segments(device)


_NO_GROWTH = ("not supported", "invalid argument", "invalid device ordinal", "not permitted")
"""CUDA's words where a driver, or the container or virtual machine that it is in, cannot map memory
into a segment afterwards."""


def take_segments(device: torch.device) -> str | None:
    """Allocates for the first time on ``device``; where segments cannot grow, takes those of fixed
    size from then on, and returns the reason."""
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        text = str(error).strip().split("\n")[0]
        if isinstance(error, torch.OutOfMemoryError) or not any(w in text for w in _NO_GROWTH):
            raise
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")
        torch.empty(1, device=device)  # it was not that, if this fails too
        log.warning("memory of %s comes in segments of fixed size: %s", device, text)
        return text
    return None
