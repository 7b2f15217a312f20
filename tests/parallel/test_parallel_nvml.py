"""NVML by a library of its own that answers what a test says, through either module pynvml."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transformer_core.measure import predicted_memory
from transformer_core.parallel import nvml

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("fake_nvml.c")
UUIDS = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-BBBBBBBB-0000-0000-0000-000000000000"]
IDS = [uuid.lower().removeprefix("gpu-") for uuid in UUIDS]

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def of_gpu(index: int, **told: Any) -> dict[str, Any]:
    return {f"{name}.{index}": value for name, value in told.items()}


HOST = {
    "driver": "580.82",
    "gpus": 2,
    **of_gpu(0, name="NVIDIA H200", uuid=UUIDS[0], used=10, total=1000, capability=90, mode=0),
    **of_gpu(0, limit=700_500, power=300_000, celsius=40, clock=1980, memory_clock=3201),
    **of_gpu(0, reasons=4 + 32, cpus=0b1101, energy=5_000, power_held=2_000_000_000),
    **of_gpu(0, heat_held=0, processes="41:1000,42:-"),
    **of_gpu(1, name="NVIDIA H200", uuid=UUIDS[1], used=11, total=1001, capability=86, mode=3),
}
"""The second GPU is a MIG parent: NVML tells little of it."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders of libraries: a driver of today, and an old one."""
    found = {}
    for name, options in {"new": [], "old": ["-DOLD"]}.items():
        found[name] = tmp_path_factory.mktemp(name)
        command = ["gcc", "-shared", "-fPIC", "-w", *options, str(SOURCE)]
        subprocess.run([*command, "-o", str(found[name] / "libnvidia-ml.so.1")], check=True)
    return found


def folder_of(package: str) -> list[str]:
    """The folder to import ``package`` from: none if it is installed."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        folder = ROOT / "nvml" / package
        if not (folder / "pynvml.py").is_file():
            pytest.skip(f"{package} is neither installed nor in {folder}")
        return [str(folder)]
    return []


class Asked:
    """Asks ``transformer_core.parallel.nvml`` in a process that has the library."""

    def __init__(self, library: Path, package: str, folder: Path) -> None:
        self.file = folder / "host"
        paths = [*folder_of(package), str(ROOT)]
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": str(self.file),
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def __call__(self, code: str, **changes: Any) -> Any:
        """The value of an expression, as JSON; ``changes`` of the host with _ for a dot."""
        said = HOST | {key.replace("__", "."): value for key, value in changes.items()}
        self.file.write_text("".join(f"{key}={value}\n" for key, value in said.items()))
        program = (
            "import json, os, pathlib\nfrom transformer_core.parallel import nvml\n"
            "def tell(**changes):\n"
            "    lines = ''.join(f'{k.replace(\"__\", \".\")}={v}\\n' for k, v in changes.items())\n"
            "    file = pathlib.Path(os.environ['FAKE_NVML'])\n"
            "    file.write_text(file.read_text() + lines)\n"
            "def plain(x): return x.model_dump() if hasattr(x, 'model_dump') else vars(x)\n"
            f"print(json.dumps({code}, default=plain))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(params=["nvidia-ml-py3", "nvidia-ml-py"])
def ask(request, libraries, tmp_path):
    return Asked(libraries["new"], request.param, tmp_path)


@pytest.fixture
def ask_old(libraries, tmp_path):
    return Asked(libraries["old"], "nvidia-ml-py3", tmp_path)


@needs_gcc
def test_gpus_are_listed(ask):
    found, note = ask("nvml.gpus()")
    assert note is None
    assert [gpu["index"] for gpu in found] == [0, 1]
    assert [gpu["name"] for gpu in found] == ["NVIDIA H200"] * 2
    assert [gpu["memory_bytes"] for gpu in found] == [1000, 1001]
    assert [gpu["driver"] for gpu in found] == ["580.82"] * 2
    assert [gpu["compute_capability"] for gpu in found] == ["9.0", "8.6"]
    assert [gpu["power_limit_watts"] for gpu in found] == [700.5, None]
    assert ask("[nvml.uuids(), nvml.exclusive_gpus()]") == [UUIDS, [1]]


@needs_gcc
def test_states_have_null_for_what_a_gpu_does_not_tell(ask):
    full, mig = ask("nvml.states()")
    assert full == {
        "index": 0,
        "clock_megahertz": 1980,
        "memory_clock_megahertz": 3201,
        "celsius": 40,
        "watts": 300.0,
        "throttled": ["power cap", "software thermal slowdown"],
    }
    assert set(mig.values()) == {1, None}


@needs_gcc
def test_a_process_whose_memory_is_not_available_is_null(ask):
    # The sentinel of nvml.h is the largest number of 64 bits.
    assert ask(f"nvml.process_memory('{IDS[0]}')") == {"41": 1000, "42": None}
    assert ask(f"nvml.process_memory('{IDS[1]}')") == {}


@needs_gcc
def test_cpus_near_a_gpu_are_those_of_its_mask(ask):
    def near(uuid: str) -> Any:
        return ask(f"setattr(nvml, 'cuda_uuid', lambda index: '{uuid}') or nvml.cpus_near(0)")

    assert near(IDS[0]) == [0, 2, 3, 64, 66, 67]
    assert near(IDS[1]) == near("a MIG slice") == []


@needs_gcc
def test_energy_and_violations_are_counted_from_one_reading_to_the_next(ask):
    found = ask(
        "[nvml.counters(), (before := nvml.counters()) and "
        "tell(energy__0=9500, power_held__0=3250000000) or nvml.work_since(before)]"
    )[1]
    assert found == [
        {"index": 0, "joules": 4.5, "power_held_seconds": 1.25, "heat_held_seconds": 0.0},
        {"index": 1, "joules": None, "power_held_seconds": None, "heat_held_seconds": None},
    ]
    restarted = ask(
        "(before := nvml.counters()) and tell(energy__0=10) or nvml.work_since(before)[0]"
    )
    assert restarted["joules"] is None


@needs_gcc
def test_an_old_driver_lacks_functions(ask_old):
    (gpu, _), note = ask_old("nvml.gpus()")
    assert (note, gpu["compute_capability"], gpu["power_limit_watts"]) == (None, None, 700.5)
    assert set(ask_old("nvml.counters()")["0"].values()) == {None}
    assert ask_old(f"nvml.process_memory('{IDS[0]}')") == {"41": 1000, "42": None}


@needs_gcc
def test_a_gpu_that_cannot_be_read_is_named_and_the_others_are_listed(ask):
    found, note = ask("nvml.gpus()", used__0="error:15")
    assert [gpu["index"] for gpu in found] == [1]
    assert note.startswith("GPU 0 cannot be read: ")
    assert ask("nvml.memory_by_uuid()", used__0="error:15") == {IDS[1]: 11}


@needs_gcc
def test_no_gpu_and_no_driver(ask):
    assert ask("nvml.gpus()", gpus=0) == [[], "the NVIDIA driver is loaded, but there is no GPU"]
    found, note = ask("nvml.gpus()", init="error:9")
    assert found == []
    assert note.startswith("no NVIDIA driver can be used: ")
    assert ask("[nvml.states(), nvml.uuids(), nvml.counters()]", init="error:9") == [[], [], {}]


def test_no_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found, note = nvml.gpus()
    assert found == []
    assert "pynvml is not installed" in note


def see(monkeypatch: pytest.MonkeyPatch, uuids: list[str]) -> None:
    """Let torch have these devices, in this order."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index])
    )


def test_memory_is_found_by_uuid_not_by_index(monkeypatch):
    monkeypatch.setattr(nvml, "memory_by_uuid", lambda: {IDS[0]: 10, IDS[1]: 11})
    # As with CUDA_VISIBLE_DEVICES=1,0; torch leaves the prefix out and writes lower case.
    see(monkeypatch, [IDS[1], IDS[0], "a device that NVML does not list"])
    assert [nvml.device_memory_used(index) for index in range(4)] == [11, 10, None, None]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ({"own": 900}, 900 - 100),  # NVML knows this process
        ({}, 500 - 100),  # in a container: all that was added
        ({7: 400}, 500 - 100),  # in a container, under the number that the host has for it
        ({7: 400, 8: 50}, None),  # another job grows meanwhile
    ],
)
def test_memory_of_this_process_beside_other_jobs(monkeypatch, processes, expected):
    mine = {os.getpid() if pid == "own" else pid: used for pid, used in processes.items()}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100)
    monkeypatch.setattr(nvml, "cuda_uuid", lambda index: IDS[0])
    monkeypatch.setattr(nvml, "process_memory", lambda identity: mine)
    monkeypatch.setattr(nvml, "memory_by_uuid", lambda: {IDS[0]: 510})
    assert predicted_memory.held_bytes(torch.device("cuda", 0), {IDS[0]: 10}) == expected


def test_importing_it_does_not_import_torch():
    code = (
        "import sys, transformer_core.machine.hardware; "
        "import transformer_core.observe.clock; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
