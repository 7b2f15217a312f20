"""The cores of this process, and which of its threads run on them."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from transformer_core.common.files import text_of


def own_threads() -> set[int]:
    """The threads of this process."""
    return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}


def bind(threads: Iterable[int], cores: Collection[int]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(thread, cores)


def keep_to(count: int) -> None:
    """Restrict all threads of this process to ``count`` of its cores: to the last ones that share no
    hardware with another, as long as there are such.

    The cores of a shared machine are not equally fast: other processes slow down a core, for
    example on its second hardware thread. Processes that take turns stay on their cores, so their
    ratio would compare cores. Does nothing if there are no more cores, and on systems that cannot
    bind threads (https://man7.org/linux/man-pages/man2/sched_setaffinity.2.html).
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = apart(os.sched_getaffinity(0))
    if count < len(cores):
        bind(own_threads(), cores[-count:])


def apart(cpus: Collection[int], root: Path = Path("/")) -> list[int]:
    """These CPUs, ascending, but first the second hardware threads of cores, whose last one comes
    later: the last CPUs then share no core. Linux numbers the threads of a core in a row (as in many
    virtual machines), or those of all cores one after the other."""
    last_of_core: dict[str, int] = {}
    for cpu in sorted(cpus):
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        last_of_core[text_of(place) or str(cpu)] = cpu
    alone = set(last_of_core.values())
    return sorted(cpus, key=lambda cpu: (cpu in alone, cpu))
