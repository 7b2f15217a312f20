"""The same cores for all compared processes."""

import os
from pathlib import Path

_THREADS = Path("/proc/self/task")


def keep_to(count: int) -> None:
    """Let all threads of this process run on the last ``count`` of its cores only.

    The cores of a machine that is shared are not equally fast: what others do beside one of them
    (on its second hardware thread, say) slows that one down. Processes that take turns stay where
    they are, so their ratio would be one of cores. Nothing happens where there are no more cores,
    and on systems that bind no threads (https://man7.org/linux/man-pages/man2/sched_setaffinity.2.html).
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if count >= len(cores):
        return
    for thread in _THREADS.iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores[-count:])
        except ProcessLookupError:
            continue  # it ended just now
