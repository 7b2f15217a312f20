"""GPUs according to NVML: names, memory, use, state, and whether several processes may share one.
Supervisors use this module, so it imports torch only on demand.

Two distributions provide the module ``pynvml``: nvidia-ml-py3 returns bytes and lacks newer
functions, nvidia-ml-py returns str. We support both, and hosts without a GPU.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from schemas.errors import Unsupported
from schemas.results.comparisons import GpuState, GpuWork
from schemas.results.machine import Gpu

Read = TypeVar("Read")


class NvmlUnavailableError(Exception):
    """NVML cannot be used on this host; the text says why."""


def gpus() -> tuple[list[Gpu], str | None]:
    """All GPUs of the host in NVML's order, and why some or all are missing from the list.

    CUDA_VISIBLE_DEVICES does not affect the list. The note is None if nothing is missing.
    """
    found: list[Gpu] = []
    missing: list[str] = []
    try:
        with _session() as nvml:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    found.append(_gpu(nvml, index, driver))
                except nvml.NVMLError as error:
                    missing.append(f"GPU {index} cannot be read: {error}")
            if not found and not missing:
                missing.append("the NVIDIA driver is loaded, but there is no GPU")
    except NvmlUnavailableError as error:
        missing.append(str(error))
    return found, "; ".join(missing) or None


def device_memory_used(index: int) -> int | None:
    """Bytes in use, by all processes, on the GPU that torch calls ``cuda:<index>``.

    The count includes memory that the driver reserves, CUDA contexts, and buffers of libraries. None
    if NVML is missing, does not tell, or does not know the device.
    """
    return memory_by_uuid().get(cuda_uuid(index) or "")


def memory_by_uuid(kind: Literal["used", "free", "total"] = "used") -> dict[str, int]:
    """Bytes in use, by all processes, or free or in total, on every GPU and MIG slice of the host that
    reports them; creates no CUDA context. A GPU that MIG divides has the memory of its first slice, which
    CUDA takes."""
    found: dict[str, int] = {}

    def read(nvml: Any, handle: Any) -> None:
        slices = _slices(handle)
        for named, used in [(handle, (slices or [handle])[0]), *((one, one) for one in slices)]:
            count = getattr(nvml.nvmlDeviceGetMemoryInfo(used), kind)
            found[_bare_uuid(_uuid(nvml, named))] = int(count)

    _of_each_device(read)
    return found


def process_memory(identity: str) -> dict[int, int | None]:
    """Bytes that each process has on the GPU ``identity``, by process id; None if NVML does not
    tell. Inside a container the ids may be those of the host."""

    def read(nvml: Any, handle: Any) -> dict[int, int | None]:
        return {
            int(process.pid): None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }

    return _by_uuid(read).get(identity, {})


def states() -> list[GpuState]:
    """Clocks of all GPUs of the host, and what limits them; empty if NVML cannot be used."""
    return [GpuState(index=index, **state) for index, state in _of_each_device(_state).items()]


def uuids() -> list[str]:
    return list(_of_each_device(_uuid).values())


VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs that a process started from here sees, in its order.

    Numbers in CUDA_VISIBLE_DEVICES count the devices in the order of the PCI bus, as NVML and
    nvidia-smi do. The beginning of a UUID stands for the only GPU whose begins so; UUIDs of slices,
    and of GPUs that NVML does not list, are kept unchanged. Repeated entries count once. As in CUDA,
    the first entry that does not exist ends the list.
    """
    found = uuids()
    if VISIBLE not in os.environ:
        return found
    visible: list[str] = []
    for entry in os.environ[VISIBLE].split(","):
        name = entry.strip()
        if name.isdigit():
            if int(name) >= len(found):
                break
            visible.append(found[int(name)])
        elif name.startswith(("GPU-", "MIG-")):
            meant = [uuid for uuid in found if uuid.lower().startswith(name.lower())]
            visible.append(meant[0] if len(meant) == 1 else name)
        else:
            break
    return list(dict.fromkeys(visible))


_POLICIES = {"power_held_seconds": 0, "heat_held_seconds": 1}
"""NVML's performance policies (nvml.h), by the fields of their times."""


def counters() -> dict[int, dict[str, float | None]]:
    """How long power and heat have held the clocks of each GPU down since its driver was loaded; None where NVML
    does not count it."""
    return _of_each_device(
        lambda _, handle: {name: _held(handle, policy) for name, policy in _POLICIES.items()}
    )


def work_since(before: Mapping[int, Mapping[str, float | None]]) -> list[GpuWork]:
    def grown(before: float | None, after: float | None) -> float | None:
        # A reloaded driver counts from 0 again.
        return None if before is None or after is None or after < before else after - before

    return [
        GpuWork(index=index, **{name: grown(before[index][name], now[name]) for name in now})
        for index, now in (counters().items() if before else ())
        if index in before
    ]


def cpus_near(index: int) -> list[int]:
    """CPUs close to the GPU that torch calls ``cuda:<index>``; empty if NVML does not tell."""

    def read(nvml: Any, handle: Any) -> list[int]:
        words = _optional(nvml, "nvmlDeviceGetCpuAffinity", handle, _MOST_CPUS // 64) or ()
        return [
            64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1
        ]

    return _by_uuid(read).get(cuda_uuid(index) or "", [])


_MOST_CPUS = 2048
_EXCLUSIVE_PROCESS = 3  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS of nvml.h


def exclusive_gpus(among: Collection[str] | None = None) -> list[int]:
    """Indexes, in NVML's order, of the GPUs that accept only one process at a time: of those with the
    UUIDs ``among``, or of all."""

    def mode(nvml: Any, handle: Any) -> Any:
        if among is not None and _uuid(nvml, handle) not in among:
            return None
        return _optional(nvml, "nvmlDeviceGetComputeMode", handle)

    return [index for index, found in _of_each_device(mode).items() if found == _EXCLUSIVE_PROCESS]


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    """The initialised module ``pynvml``; NVML itself counts nested sessions."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailableError(
            f"the Python module pynvml is not installed ({error})"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"no NVIDIA driver can be used: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML failed: {error}") from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _of_each_device(read: Callable[[Any, Any], Read]) -> dict[int, Read]:
    """Results of ``read(nvml, handle)`` for every GPU of the host by index, without failing ones."""
    found: dict[int, Read] = {}
    with contextlib.suppress(NvmlUnavailableError), _session() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                found[index] = read(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    return found


def _by_uuid(read: Callable[[Any, Any], Read]) -> dict[str, Read]:
    """Results of ``read(nvml, handle)`` for every GPU by UUID, without failing ones."""

    def with_uuid(nvml: Any, handle: Any) -> tuple[str, Read]:
        return _bare_uuid(_uuid(nvml, handle)), read(nvml, handle)

    return dict(_of_each_device(with_uuid).values())


def _uuid(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(handle))


def _gpu(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    milliwatts = _optional(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    used = (_slices(handle) or [handle])[0]
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(used)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(used).total),
        compute_capability=_compute_capability(handle),
        driver=driver,
        power_limit_watts=None if milliwatts is None else milliwatts / 1000,
    )


_SM_CLOCK = 1
"""NVML_CLOCK_SM of nvml.h."""

_THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "synchronised with a slower GPU",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksThrottleReasons in nvml.h that hold a busy GPU's clocks down."""


def _state(nvml: Any, handle: Any) -> dict[str, Any]:
    reasons = _optional(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    named = [name for bit, name in _THROTTLE_REASONS.items() if int(reasons or 0) & bit]
    clock = _optional(nvml, "nvmlDeviceGetClockInfo", handle, _SM_CLOCK)
    return {"clock_megahertz": clock, "throttled": None if reasons is None else named}


def _optional(nvml: Any, function: str, handle: Any, *arguments: int) -> Any:
    """The result of an NVML function, or None if module, driver or device lack it."""
    call = getattr(nvml, function, None)
    if call is None:
        return None
    try:
        return call(handle, *arguments)
    except nvml.NVMLError:
        return None


def _of_the_library(function: str, *arguments: Any) -> bool:
    """Calls a function of the C library, since nvidia-ml-py3 lacks it; returns whether it succeeded."""
    try:
        # The library is already loaded and initialised, so this only takes another reference.
        call = getattr(ctypes.CDLL("libnvidia-ml.so.1"), function)
    except (AttributeError, OSError):
        return False
    return bool(call(*arguments) == 0)


def _compute_capability(handle: Any) -> str | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    places = ctypes.byref(major), ctypes.byref(minor)
    known = _of_the_library("nvmlDeviceGetCudaComputeCapability", handle, *places)
    return f"{major.value}.{minor.value}" if known else None


_MOST_SLICES = 7


def _slices(handle: Any) -> list[Any]:
    """Handles of the MIG slices of a GPU that this process sees; none unless MIG divides it."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    known = _of_the_library("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(later))
    found = []
    for number in range(_MOST_SLICES if known and now.value else 0):
        place = type(handle)()
        asked = handle, ctypes.c_uint(number), ctypes.byref(place)
        if _of_the_library("nvmlDeviceGetMigDeviceHandleByIndex", *asked):
            found.append(place)
    return found


def _held(handle: Any, policy: int) -> float | None:
    """Seconds for which a performance ``policy`` held the clocks down."""
    times = (ctypes.c_ulonglong * 2)()  # time of the reading in us, duration in ns
    asked = handle, ctypes.c_uint(policy), ctypes.byref(times)
    known = _of_the_library("nvmlDeviceGetViolationStatus", *asked)
    return times[1] / 1e9 if known else None


def cuda_uuid(index: int) -> str | None:
    """UUID of torch's CUDA device, which unlike its index does not depend on CUDA_VISIBLE_DEVICES."""
    # Imported late, so that reading the hardware does not cost the import of torch.
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    return _bare_uuid(str(torch.cuda.get_device_properties(index).uuid))


def _bare_uuid(uuid: str) -> str:
    """A UUID without NVML's prefix, as torch has it."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def require_shared_gpus(processes: int, gpus: Collection[str]) -> None:
    """Raises Unsupported if several ``processes`` would share one of the ``gpus``, by UUID, that
    accepts only one."""
    exclusive = exclusive_gpus(gpus) if processes > 1 and not _multi_process_service() else []
    if exclusive:
        raise Unsupported(
            f"{processes} processes take turns on a GPU, but GPU {exclusive[0]} is in "
            f"exclusive-process mode, which refuses the second. {_remedy(str(exclusive[0]))}"
        )


def _multi_process_service() -> bool:
    """Whether CUDA's Multi-Process Service runs here: to a GPU, all its clients are one process."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return Path(pipes, "control").exists()


_BUSY = "busy or unavailable"
"""CUDA's message when a GPU rejects this process (cudaErrorDevicesUnavailable)."""


def busy(error: BaseException) -> str | None:
    """The cause and its remedy, if ``error`` says that a GPU rejects this process."""
    return why_busy(str(error)) if isinstance(error, RuntimeError) else None


def why_busy(text: str) -> str | None:
    """The same by the ``text`` of an error, which may be another process's."""
    if _BUSY not in text:
        return None
    exclusive = exclusive_gpus(visible_gpus())
    if not exclusive:
        return (
            "a GPU is busy or unavailable: another process may have it for itself, or compute "
            "work is prohibited on it (nvidia-smi -q -d COMPUTE shows its compute mode)"
        )
    return (
        f"GPU {exclusive[0]} is in exclusive-process mode, and another process has it. End that "
        f"one (nvidia-smi lists it). {_remedy(str(exclusive[0]))}"
    )


def _remedy(index: str) -> str:
    return (
        f"Allow more of them (nvidia-smi -i {index} -c DEFAULT, as root), or start the CUDA "
        "Multi-Process Service (nvidia-cuda-mps-control -d)"
    )
