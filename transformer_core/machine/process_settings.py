"""Settings that a process really received besides its C allocator: cores, and torch's allocator of
CUDA memory."""

import os
import sys
from itertools import pairwise
from pathlib import Path

_ROOT = Path("/")
CUDA_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where torch looks for settings of its allocator; the first is the one that is not deprecated."""


def affinity() -> str:
    """The cores that the process may run on, and how many of its threads keep to one of these."""
    if not hasattr(os, "sched_getaffinity"):
        return "any core"
    cores = os.sched_getaffinity(os.getpid())  # of the first thread; 0 would be this one
    alone = 0
    for thread in (_ROOT / "proc/self/task").iterdir():
        try:
            alone += len(os.sched_getaffinity(int(thread.name))) == 1
        except ProcessLookupError:
            continue  # it ended just now
    bound = f", {alone} threads on one core each" if alone and len(cores) > 1 else ""
    return f"cores {_ranges(sorted(cores))}{bound}"


def cuda_allocator() -> str | None:
    """Kind of torch's allocator on CUDA devices, of its segments, and the settings that ask for
    them; null where this process has used none."""
    torch = sys.modules.get("torch")  # supervisors do without
    if torch is None or not torch.cuda.is_initialized():
        return None
    backend = torch.cuda.get_allocator_backend()
    parts = [backend]
    segments = torch.cuda.memory_snapshot() if backend == "native" else []
    if segments:
        grow = any(segment.get("is_expandable") for segment in segments)
        parts.append("segments that grow" if grow else "segments of fixed size")
    parts += [f"{name}={os.environ[name]}" for name in CUDA_VARIABLES if name in os.environ]
    return ", ".join(parts)


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as 0-3, 8."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1]
    runs = [numbers[i:j] for i, j in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


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
