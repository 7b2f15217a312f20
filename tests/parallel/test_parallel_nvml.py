"""NVML with either of the modules called pynvml, and without a GPU."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from transformer_core.parallel import nvml


class FakeNvmlError(Exception):
    """Stands for pynvml.NVMLError."""


UUIDS = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-BBBBBBBB-0000-0000-0000-000000000000"]


def fake(*, as_bytes: bool, devices: int = 2, broken: int | None = None) -> ModuleType:
    """A pynvml with ``devices`` GPUs, as nvidia-ml-py3 (bytes) or as nvidia-ml-py (str)."""
    module: Any = ModuleType("pynvml")
    module.sessions = 0

    def text(value: str) -> str | bytes:
        return value.encode() if as_bytes else value

    def opened() -> None:
        module.sessions += 1

    def closed() -> None:
        module.sessions -= 1

    def memory(handle: int) -> SimpleNamespace:
        if handle == broken:
            raise FakeNvmlError("Not Supported")
        return SimpleNamespace(total=1000 + handle, used=10 + handle, free=0)

    def power(handle: int) -> int:
        if handle == 1:
            raise FakeNvmlError("Not Supported")
        return 700_500

    module.NVMLError = FakeNvmlError
    module.nvmlInit = opened
    module.nvmlShutdown = closed
    module.nvmlSystemGetDriverVersion = lambda: text("580.82")
    module.nvmlDeviceGetCount = lambda: devices
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetName = lambda handle: text(f"GPU model {handle}")
    module.nvmlDeviceGetUUID = lambda handle: text(UUIDS[handle])
    module.nvmlDeviceGetMemoryInfo = memory
    module.nvmlDeviceGetEnforcedPowerLimit = power
    if not as_bytes:
        module.nvmlDeviceGetCudaComputeCapability = lambda handle: [9, handle]
    return module


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library behind the module is not there."""

    def fail(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(nvml.ctypes, "CDLL", fail)


def see(monkeypatch: pytest.MonkeyPatch, uuids: list[str]) -> None:
    """Let torch have these devices, in this order."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index])
    )


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("as_bytes", [True, False])
def test_lists_gpus(monkeypatch: pytest.MonkeyPatch, as_bytes: bool) -> None:
    module = fake(as_bytes=as_bytes)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found, note = nvml.gpus()
    assert note is None
    assert [gpu.index for gpu in found] == [0, 1]
    assert [gpu.name for gpu in found] == ["GPU model 0", "GPU model 1"]
    assert [gpu.memory_bytes for gpu in found] == [1000, 1001]
    assert [gpu.driver for gpu in found] == ["580.82", "580.82"]
    assert [gpu.power_limit_watts for gpu in found] == [700.5, None]
    expected = [None, None] if as_bytes else ["9.0", "9.1"]
    assert [gpu.compute_capability for gpu in found] == expected
    assert module.sessions == 0


@pytest.mark.parametrize("status", [0, 3])
def test_asks_the_library_where_the_module_lacks_a_function(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def capability(handle: int, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 8, 6
        return status

    library = SimpleNamespace(nvmlDeviceGetCudaComputeCapability=capability)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: library)
    monkeypatch.setitem(sys.modules, "pynvml", fake(as_bytes=True, devices=1))
    assert nvml.gpus()[0][0].compute_capability == ("8.6" if status == 0 else None)


@pytest.mark.usefixtures("no_library")
def test_a_gpu_that_cannot_be_read_is_named_and_the_others_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake(as_bytes=False, broken=0))
    found, note = nvml.gpus()
    assert [gpu.index for gpu in found] == [1]
    assert note == "GPU 0 cannot be read: Not Supported"


def test_no_gpu_no_driver_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake(as_bytes=True, devices=0))
    assert nvml.gpus() == ([], "the NVIDIA driver is loaded, but there is no GPU")

    module: Any = fake(as_bytes=True)

    def fail() -> None:
        raise FakeNvmlError("Driver Not Loaded")

    module.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert nvml.gpus() == ([], "no NVIDIA driver can be used: Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    found, note = nvml.gpus()
    assert found == []
    assert note is not None
    assert "pynvml is not installed" in note


@pytest.mark.parametrize("as_bytes", [True, False])
def test_memory_is_found_by_uuid_not_by_index(
    monkeypatch: pytest.MonkeyPatch, as_bytes: bool
) -> None:
    module = fake(as_bytes=as_bytes)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    # As with CUDA_VISIBLE_DEVICES=1,0; torch leaves the prefix out and writes lower case.
    see(monkeypatch, [uuid.removeprefix("GPU-").lower() for uuid in reversed(UUIDS)])
    assert nvml.device_memory_used(0) == 11
    assert nvml.device_memory_used(1) == 10
    assert nvml.device_memory_used(2) is None
    assert module.sessions == 0


def test_memory_is_null_where_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = fake(as_bytes=False, broken=1)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nvml.device_memory_used(0) is None
    see(monkeypatch, ["cccccccc-0000-0000-0000-000000000000", UUIDS[1].lower()])
    assert nvml.device_memory_used(0) is None, "a device that NVML does not list"
    assert nvml.device_memory_used(1) is None, "a device whose memory NVML does not tell"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.device_memory_used(1) is None


def test_importing_it_does_not_import_torch() -> None:
    code = (
        "import sys, transformer_core.machine.hardware; "
        "import transformer_core.observe.clock; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
