"""GPUs according to NVML: their names, their memory, and how much of it is in use.

The module ``pynvml`` comes with two distributions: nvidia-ml-py3 returns bytes and lacks newer
functions, nvidia-ml-py returns str. Both work here, and so does a host without a GPU.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from schemas.results.comparisons import GpuState
from schemas.results.machine import Gpu


class NvmlUnavailableError(Exception):
    """NVML cannot be used on this host; the text says why."""


def gpus() -> tuple[list[Gpu], str | None]:
    """All GPUs of the host in NVML's order, and why some or all are missing from the list.

    CUDA_VISIBLE_DEVICES has no influence on the list. The note is None if nothing is missing.
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

    The count includes what the driver reserves, CUDA contexts, and buffers of libraries. None if
    NVML is not there, does not tell, or does not know the device (a MIG slice).
    """
    identity = cuda_uuid(index)
    return None if identity is None else memory_by_uuid().get(identity)


def memory_by_uuid() -> dict[str, int]:
    """Bytes in use, by all processes, on every GPU of the host that reports them; needs no context
    on any of them."""
    return _of_each_device(lambda nvml, handle: int(nvml.nvmlDeviceGetMemoryInfo(handle).used))


def free_by_uuid() -> dict[str, int]:
    """Free bytes on every GPU of the host that reports them."""
    return _of_each_device(lambda nvml, handle: int(nvml.nvmlDeviceGetMemoryInfo(handle).free))


def process_memory(identity: str) -> dict[int, int | None]:
    """Bytes that each process has on the GPU ``identity`` by process id, null where NVML does not
    tell. Inside a container the ids may be those of the host."""

    def read(nvml: Any, handle: Any) -> dict[int, int | None]:
        return {
            int(process.pid): None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }

    return _of_each_device(read).get(identity, {})


def states() -> list[GpuState]:
    """Clocks, temperature and power of all GPUs of the host; empty where NVML cannot be used."""
    found: list[GpuState] = []
    with contextlib.suppress(NvmlUnavailableError), _session() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                found.append(_state(nvml, index))
    return found


def uuids() -> list[str]:
    """UUIDs of all GPUs of the host in NVML's order; empty where NVML cannot be used."""
    found: list[str] = []
    with contextlib.suppress(NvmlUnavailableError), _session() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(_text(nvml.nvmlDeviceGetUUID(handle)))
    return found


_EXCLUSIVE_PROCESS = 3
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS of nvml.h."""


def exclusive_gpus() -> list[int]:
    """Indexes, in NVML's order, of the GPUs that let in one process at a time."""
    found: list[int] = []
    with contextlib.suppress(NvmlUnavailableError), _session() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if _optional(nvml, "nvmlDeviceGetComputeMode", handle) == _EXCLUSIVE_PROCESS:
                    found.append(index)
    return found


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


def _of_each_device(read: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """``read(nvml, handle)`` of every GPU by UUID, without those that fail."""
    found: dict[str, Any] = {}
    with contextlib.suppress(NvmlUnavailableError), _session() as nvml:
        for position in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(position)
                identity = _bare_uuid(_text(nvml.nvmlDeviceGetUUID(handle)))
                found[identity] = read(nvml, handle)
    return found


def _gpu(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = _optional(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if capability is None:
        capability = _compute_capability(handle)
    milliwatts = _optional(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        driver=driver,
        power_limit_watts=None if milliwatts is None else milliwatts / 1000,
    )


_SM_CLOCK, _MEMORY_CLOCK, _CORE_SENSOR = 1, 2, 0
"""NVML_CLOCK_SM, NVML_CLOCK_MEM and NVML_TEMPERATURE_GPU of nvml.h."""

_THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "synchronised with a slower GPU",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksThrottleReasons in nvml.h that hold a busy GPU's clocks down."""


def _state(nvml: Any, index: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    milliwatts = _optional(nvml, "nvmlDeviceGetPowerUsage", handle)
    reasons = _optional(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return GpuState(
        index=index,
        clock_megahertz=_optional(nvml, "nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
        memory_clock_megahertz=_optional(nvml, "nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK),
        celsius=_optional(nvml, "nvmlDeviceGetTemperature", handle, _CORE_SENSOR),
        watts=None if milliwatts is None else milliwatts / 1000,
        throttled=None
        if reasons is None
        else [name for bit, name in _THROTTLE_REASONS.items() if int(reasons) & bit],
    )


def _optional(nvml: Any, function: str, handle: Any, *arguments: int) -> Any:
    """The result of an NVML function, or None where module, driver or device lack it."""
    call = getattr(nvml, function, None)
    if call is None:
        return None
    try:
        return call(handle, *arguments)
    except nvml.NVMLError:
        return None


def _compute_capability(handle: Any) -> tuple[int, int] | None:
    """The compute capability from the library itself: nvidia-ml-py3 has no function for it."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        # The library is loaded and initialised by now: this only takes another reference.
        call = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetCudaComputeCapability
    except (AttributeError, OSError):
        return None
    success = call(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
    return (major.value, minor.value) if success else None


def cuda_uuid(index: int) -> str | None:
    """UUID of torch's CUDA device: CUDA_VISIBLE_DEVICES reorders indexes, never UUIDs."""
    # Only here: reading the hardware must not cost the import of torch.
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    return _bare_uuid(str(torch.cuda.get_device_properties(index).uuid))


def _bare_uuid(uuid: str) -> str:
    """A UUID without NVML's prefix, which torch leaves out."""
    return uuid.lower().removeprefix("gpu-")


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
