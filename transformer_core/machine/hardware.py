"""The machine of a job.

Everything is read inside the job, and describes what *this process* may use: affinity and control
groups may allow fewer cores and less memory than the host has.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil

from schemas.results import Gpu, Hardware
from transformer_core.common.digests import write_result
from transformer_core.common.files import text_of
from transformer_core.common.job import Job
from transformer_core.parallel import nvml

_FEATURES = frozenset(
    (
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
        *("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"),  # ARM
    )
)

_ALLOCATOR_VARIABLES = (
    *("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_CONF"),
    *("MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"),
)
_ROOT = Path("/")
_DRIVERS = "nvidiactl", "dxg", "kfd"
"""Files in /dev of NVIDIA's driver, of GPUs in WSL, and of AMD's driver."""


def read_hardware() -> Hardware:
    devices, note = nvml.gpus()
    devices = devices or gpus_of_torch()
    return Hardware(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_name(),
        cores=usable_cores(),
        logical_cpus=psutil.cpu_count() or usable_cores(),
        memory_bytes=usable_memory_bytes(),
        cpu_features=cpu_features(),
        gpus=devices,
        gpu_note=note,
        allocator=allocator(),
        cuda_allocator=cuda_allocator(),
        affinity=affinity(),
    )


def gpus_of_torch(root: Path = _ROOT) -> list[Gpu]:
    """GPUs that torch can use, for hosts without NVML: some containers, and AMD's GPUs."""
    if not any((root / "dev" / name).exists() for name in _DRIVERS):
        return []  # importing torch takes seconds
    import torch

    if not torch.cuda.is_available():
        return []
    version = torch.version.cuda or torch.version.hip
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        Gpu(
            index=index,
            name=device.name,
            memory_bytes=device.total_memory,
            compute_capability=f"{device.major}.{device.minor}",
            driver=f"unknown (torch for {version})",
            power_limit_watts=None,
        )
        for index, device in enumerate(devices)
    ]


def cpu_name(root: Path = _ROOT) -> str:
    """Product name of the CPU, else its architecture. ``root`` is the parent folder of /proc."""
    name = _cpuinfo(root).get("model name")
    if name:
        return name
    # Linux on ARM gives numbers in /proc/cpuinfo, which lscpu translates; macOS has no /proc.
    lscpu = output_of("lscpu", LC_ALL="C") or ""
    match = re.search(r"^Model name:\s*(\S.*)$", lscpu, re.MULTILINE)
    if match and match[1].strip() != "-":
        return match[1].strip()
    sysctl = output_of("sysctl", "-n", "machdep.cpu.brand_string")
    return sysctl or platform.processor() or platform.machine()


def cpu_features(root: Path = _ROOT) -> list[str]:
    """The CPU's instruction sets that determine the speed of matrix products, by Linux's names,
    sorted; empty without /proc/cpuinfo."""
    info = _cpuinfo(root)
    flags = info.get("flags", info.get("Features", ""))
    return sorted(_FEATURES & set(flags.split()))


def usable_cores(root: Path = _ROOT) -> int:
    """Cores that this process may use, by its affinity and the quota of its control groups.

    A quota that is not a whole number of cores is rounded down, to at least one.
    """
    known = hasattr(os, "sched_getaffinity")
    limits = [len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1]
    for folder in control_groups("cpu", root):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        if not quota:
            quota = text_of(folder / "cpu.cfs_quota_us")
            period = text_of(folder / "cpu.cfs_period_us")
        # No limit is "max" in version 2 and -1 in version 1.
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) // int(period))
    return max(1, min(limits))


def usable_memory_bytes(root: Path = _ROOT) -> int:
    """Main memory of the host, or the limit of this process's control groups if that is smaller."""
    limits = [psutil.virtual_memory().total]
    for folder in control_groups("memory", root):
        limit = text_of(folder / "memory.max") or text_of(folder / "memory.limit_in_bytes")
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits)


def last_level_cache_bytes(root: Path = _ROOT, cpus: Collection[int] | None = None) -> int:
    """Size of the largest caches of these CPUs, together, by default of those that this process may
    use; 0 if Linux does not report it.

    The threads of one array fill the caches of all of them: chiplets and sockets have their own.
    """
    if cpus is None and hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
    caches: dict[tuple[str, int], int] = {}
    for cpu in cpus or ():
        found = [(0, "")]
        for file in root.glob(f"sys/devices/system/cpu/cpu{cpu}/cache/index*/size"):
            match = re.fullmatch(r"(\d+)([KM]?)", text_of(file))
            if match:
                size = int(match[1]) * {"": 1, "K": 2**10, "M": 2**20}[match[2]]
                found.append((size, text_of(file.with_name("shared_cpu_list")) or str(cpu)))
        size, shared_by = max(found)
        caches[shared_by, size] = size
    return sum(caches.values())


def allocator(root: Path = _ROOT) -> str:
    """The allocator in use, the C library's or a preloaded one, and settings of its page faults."""
    parts = [_malloc_library()]
    pages = text_of(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", pages)
    if chosen:
        parts.append(f"transparent huge pages: {chosen[1]}")
    parts += [f"{name}={os.environ[name]}" for name in _ALLOCATOR_VARIABLES if name in os.environ]
    return ", ".join(parts)


class _SymbolInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _malloc_library() -> str:
    """Name of the library whose malloc this process calls, with glibc's version."""
    # The list of loaded libraries is not enough: one may be loaded without replacing malloc.
    try:
        process = ctypes.CDLL(None)
        info = _SymbolInfo()
        malloc = ctypes.cast(process.malloc, ctypes.c_void_p)
        found = process.dladdr(malloc, ctypes.byref(info)) and info.file
    except (AttributeError, OSError, TypeError):
        found = None
    name = Path(os.fsdecode(found)).name if found else ""
    for known in ("jemalloc", "tcmalloc", "mimalloc"):
        if known in name:
            return f"{known} ({name})"
    library, version = platform.libc_ver()
    if library == "glibc" and name.startswith(("libc.so", "libc-")):
        return f"glibc {version}"
    return name or "unknown"


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the control group of this process and of all above it, version 1 or 2."""
    mount = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            tops = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            tops = [mount / controllers, mount / controller]
        else:
            continue
        # In a container this may be the path on the host: then only the top exists here.
        for top in tops:
            folder = top / group.strip("/")
            yield from (path for path in [folder, *folder.parents] if path.is_relative_to(top))


def _cpuinfo(root: Path) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in text_of(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def output_of(*command: str, **environment: str) -> str | None:
    """The output of a command without line breaks around it; null if it is missing, fails or hangs."""
    env = os.environ | environment
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


CUDA_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where torch looks for settings of its allocator. All but the first are deprecated, but torch 2.8 for
CUDA reads only the second."""


def affinity() -> str:
    """The cores that the process may use, and how many of its threads are bound to a single one."""
    if not hasattr(os, "sched_getaffinity"):
        return "any core"
    cores = os.sched_getaffinity(os.getpid())  # of the first thread; 0 would be this one
    alone = 0
    for thread in (_ROOT / "proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it ended just now
            alone += len(os.sched_getaffinity(int(thread.name))) == 1
    bound = f", {alone} threads on one core each" if alone and len(cores) > 1 else ""
    return f"cores {_ranges(sorted(cores))}{bound}"


def cuda_allocator() -> str | None:
    """The kinds of torch's allocator on CUDA devices and of its segments, and the user's settings;
    None if this process has not used CUDA."""
    torch = sys.modules.get("torch")  # supervisors do not import it
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


class HardwareJob(Job):
    """Describes the machine that the job runs on: CPU, memory, GPUs, allocator."""

    kind = "hardware"

    output: Path  # JSON file to write

    def run(self, log_file: Path | None) -> None:
        write_result(self.output, read_hardware().model_dump_json(indent=2) + "\n")
