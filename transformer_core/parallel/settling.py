"""Threads and cores of a process that trains.

A thread that moves to another core loses the contents of its cache, and a rank that shares a core
with another waits for it. torch has no setting for this. OpenMP's environment variables
(OMP_PROC_BIND) would also bind the first thread of a process, and with it all threads that it starts
later, such as those that prepare batches or send messages, to one core.
"""

import os
import sys

import torch

from schemas.config.parallel import Machine
from schemas.errors import Unsupported
from transformer_core.common.cores import apart, bind, own_threads
from transformer_core.common.progress import log

_WORTH_A_THREAD = 2**16
"""Number of elements; torch starts no second thread for less than half of it (ATen, GRAIN_SIZE)."""


def bind_threads(place: int, places: int) -> None:
    """Binds this process, number ``place`` of ``places`` on its host, to as many cores as it has
    threads, which no other of these processes uses, and each of torch's threads but the first to one
    of these cores. Threads that start later run on any core of the process.

    Raises Unsupported if there are fewer cores than threads, or the system cannot bind threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise Unsupported("machine.affinity: cores needs Linux: this system cannot bind threads")
    threads, cores = torch.get_num_threads(), apart(os.sched_getaffinity(0))
    if places * threads > len(cores):
        raise Unsupported(
            f"machine.affinity: cores needs a core for each thread: {places} processes of "
            f"{threads} threads may only use {len(cores)} cores of this host; set "
            "machine.affinity: none, or lower machine.threads"
        )
    share = core_share(cores, place, places, threads)
    before = own_threads()
    bind(before, share)
    torch.ones(threads * _WORTH_A_THREAD)  # makes torch start its threads
    started = sorted(own_threads() - before)
    # If other threads started meanwhile, we cannot identify torch's.
    if len(started) == threads - 1:
        for thread, core in zip(started, share[1:], strict=True):
            bind([thread], [core])


def core_share(cores: list[int], place: int, places: int, threads: int) -> list[int]:
    """The cores of process ``place`` of ``places``: the last ones, as for processes that take turns."""
    taken = sorted(cores[len(cores) - places * threads :])
    return taken[place * threads :][:threads]


SWITCH_SECONDS = 0.0005
"""How long the thread that prepares batches may block the one that launches kernels, which takes some
microseconds for each. Python's default is 5 ms."""


def settle(device: torch.device, machine: Machine, place: int, places: int) -> None:
    """Applies the settings of ``machine`` for threads and cores to this process, number ``place`` of
    ``places`` on this host. For a GPU as ``device``, threads switch more often.

    Raises Unsupported if ``machine`` asks for the impossible.
    """
    if machine.cuda_allocator != "expandable_segments" and device.type != "cuda":
        raise Unsupported(
            f"machine.cuda_allocator: {machine.cuda_allocator} only applies to CUDA devices; this "
            f"run is on a {device.type.upper()}"
        )
    if machine.threads:
        torch.set_num_threads(machine.threads)
    if machine.affinity == "cores":
        bind_threads(place, places)
    if device.type == "cuda":
        sys.setswitchinterval(SWITCH_SECONDS)
        take_segments(device)


_NO_GROWTH = ("not supported", "invalid argument", "invalid device ordinal", "not permitted")
"""CUDA's messages if the driver, its container or virtual machine cannot add memory to a segment."""


def take_segments(device: torch.device) -> str | None:
    """Makes the first allocation on ``device``. If segments cannot grow, switches to segments of
    fixed size and returns the reason."""
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        text = str(error).strip().split("\n")[0]
        if isinstance(error, torch.OutOfMemoryError) or not any(w in text for w in _NO_GROWTH):
            raise
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")
        torch.empty(1, device=device)  # if this fails too, the cause was another
        log.warning("memory of %s uses segments of fixed size: %s", device, text)
        return text
    return None
