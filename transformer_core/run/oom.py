"""The reason of an out-of-memory error: bytes requested, bytes free, and a remedy.

Nothing here imports torch: supervisors use it.
"""

import re
import resource
import sys
from pathlib import Path

import psutil

from transformer_core.common.files import text_of
from transformer_core.machine.hardware import control_groups

HINT = (
    "Try a smaller batch, more micro-batches (training.accumulation), activation checkpointing "
    "(model.checkpoint: layers), a chunked loss, or FSDP."
)
_ROOT = Path("/")
_CUDA_ASKED = re.compile(r"Tried to allocate ([\d.]+ [KMGT]?i?B)")
_CUDA_FREE = re.compile(r"GPU (\d+).*? of which ([\d.]+ [KMGT]?i?B) is free", re.DOTALL)
_WRAPPED = re.compile(r"OutOfMemoryError: (CUDA|HIP) out of memory")
"""torch's error within another, as torch.compile raises it."""
_OTHER_CUDA = re.compile(
    r"CUDA (driver )?error: out of memory"
    r"|Triton Error \[CUDA\]: out of memory"
    r"|CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(HOST|DEVICE)_ALLOCATION_FAILED"
    r"|Failed to CUDA (calloc|malloc|host alloc)"
    r"|(Cuda|CUDA) failure.*out of memory"
)
"""How CUDA, its libraries and NCCL report it when torch's allocator is not involved."""
_CUBLAS = "CUBLAS_STATUS_NOT_INITIALIZED"
"""cuBLAS's error when it has no room for its handle; other faults cause the same error."""
_CUBLAS_BYTES = 256 << 20
"""Free device memory that is enough for cuBLAS: its handle and workspace take less."""
_CPU_ASKED = re.compile(r"tried to allocate (\d+) bytes")


def reason_of(error: BaseException) -> str | None:
    """The cause and its remedy if ``error`` means that memory ran out; else None."""
    text = str(error)
    torchs = type(error).__name__ == "OutOfMemoryError" or _WRAPPED.search(text)
    if isinstance(error, RuntimeError) and torchs:
        asked, free = _CUDA_ASKED.search(text), _CUDA_FREE.search(text)
        place = f"GPU {free[1]}" if free else "The GPU"
        return _sentence(place, asked and asked[1], free and free[2])
    if isinstance(error, RuntimeError) and _OTHER_CUDA.search(text):
        return _sentence("The GPU", None, None)
    if isinstance(error, RuntimeError) and _CUBLAS in text:
        left = _free_on_device()
        if left is not None and left < _CUBLAS_BYTES:
            return _sentence("The GPU", None, plain_size(left))
    if isinstance(error, RuntimeError) and "can't allocate memory" in text:
        asked = _CPU_ASKED.search(text)
        return _sentence("The host", asked and plain_size(int(asked[1])), plain_size(free_bytes()))
    if isinstance(error, MemoryError) or "std::bad_alloc" in text:
        return _sentence("The host", None, plain_size(free_bytes()))
    return None


def free_bytes(root: Path = _ROOT) -> int:
    """Bytes that this process can still allocate, within the host's memory, its control groups and
    its own limit on data."""
    free = [psutil.virtual_memory().available]
    for folder in control_groups("memory", root):
        for most_in, used_in, total in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            most, used = _number(folder / most_in), _number(folder / used_in)
            if most is not None and used is not None:
                # The kernel gives up cached files before it refuses memory.
                cached = sum(
                    _counter(folder / "memory.stat", f"{total}{name}")
                    for name in ("active_file", "inactive_file")
                )
                free.append(max(0, most - max(0, used - cached)))
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit != resource.RLIM_INFINITY:
        free.append(max(0, limit - data_bytes(root)))
    return min(free)


def data_bytes(root: Path = _ROOT) -> int:
    """Bytes that this process may write to, which RLIMIT_DATA bounds; 0 without Linux's /proc."""
    return 1024 * _counter(root / "proc/self/status", "VmData:")


def kernel_kills(root: Path = _ROOT) -> int:
    """Processes that the kernel has killed so far for lack of memory: on this host, or in this
    process's control groups if the host does not report it. A growing number explains an end."""
    counters = [root / "proc/vmstat"]
    for folder in control_groups("memory", root):
        counters += [folder / "memory.events", folder / "memory.oom_control"]
    return max(_counter(file, "oom_kill") for file in counters)


def plain_size(count: int) -> str:
    """A number of bytes for people, as torch formats it."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _free_on_device() -> int | None:
    """Free bytes of this process's CUDA device; None if it uses none."""
    torch = sys.modules.get("torch")  # supervisors do not import it
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        return int(torch.cuda.mem_get_info()[0])
    except RuntimeError:
        return None


def _sentence(place: str, asked: str | None, free: str | None) -> str:
    parts = [f"{asked} asked for" if asked else "", f"{free} free" if free else ""]
    told = ", ".join(filter(None, parts))
    return f"{place} ran out of memory{': ' if told else ''}{told}. {HINT}"


def _number(file: Path) -> int | None:
    text = text_of(file)
    return int(text) if text.isdigit() else None


def _counter(file: Path, name: str) -> int:
    lines = text_of(file).splitlines()
    values = [line.split()[1] for line in lines if line.split()[:1] == [name]]
    return int(values[0]) if values else 0
