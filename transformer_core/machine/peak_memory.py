"""Peak memory of a process, on the host and on its device."""

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from schemas.results import RankMemory

_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far, in bytes."""
    # On Linux, ru_maxrss survives exec: a fresh process would inherit its launcher's peak. VmHWM
    # starts from zero.
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak(device: torch.device) -> None:
    """Resets the peaks of torch's CUDA allocator; does nothing on other devices."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def rank_memory(rank: int, device: torch.device) -> "RankMemory":
    """Peaks of this process, whose global rank is ``rank``, and of its ``device``."""
    # Imported here: observers of scripts need only the functions above, and must start quickly.
    from schemas.results import RankMemory
    from transformer_core.parallel import nvml

    index = None
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
    return RankMemory(
        rank=rank,
        device=device.type if index is None else f"cuda:{index}",
        rss_bytes=peak_rss_bytes(),
        allocated_bytes=None if index is None else torch.cuda.max_memory_allocated(index),
        reserved_bytes=None if index is None else torch.cuda.max_memory_reserved(index),
        nvml_bytes=None if index is None else nvml.device_memory_used(index),
    )
