"""Reading NVML, imitated by a library that answers as each test says, through both pynvml modules."""

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
    **of_gpu(0, limit=700_500, clock=1980),
    **of_gpu(0, reasons=4 + 32, cpus=0b1101, power_held=2_000_000_000),
    **of_gpu(0, heat_held=0, processes="41:1000,42:-"),
    **of_gpu(1, name="NVIDIA H200", uuid=UUIDS[1], used=11, total=1001, capability=86, mode=3),
}
"""NVML reports little of the second GPU."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders with imitated libraries of a current and of an old driver."""
    found = {}
    for name, options in {"new": [], "old": ["-DOLD"]}.items():
        found[name] = tmp_path_factory.mktemp(name)
        command = ["gcc", "-shared", "-fPIC", "-w", *options, str(SOURCE)]
        subprocess.run([*command, "-o", str(found[name] / "libnvidia-ml.so.1")], check=True)
    return found


def folder_of(package: str) -> list[str]:
    """The folder to import ``package`` from; empty if it is installed."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        folder = ROOT / "nvml" / package
        if not (folder / "pynvml.py").is_file():
            pytest.skip(f"{package} is neither installed nor in {folder}")
        return [str(folder)]
    return []


PROGRAM = """
import json, os, pathlib, sys
from transformer_core.parallel import nvml

host = pathlib.Path(os.environ["FAKE_NVML"])

def tell(**changes):  # with __ for a dot
    lines = "".join(f"{k.replace('__', '.')}={v}\\n" for k, v in changes.items())
    host.write_text(host.read_text() + lines)

def plain(x):
    return x.model_dump() if hasattr(x, "model_dump") else vars(x)

for expression in sys.stdin:
    print(json.dumps(eval(expression), default=plain), flush=True)
"""


class Asked:
    """A process with the imitated library that evaluates expressions of ``nvml``."""

    def __init__(self, library: Path, package: str) -> None:
        self.host = library / f"host of {package}"
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": str(self.host),
            "PYTHONPATH": os.pathsep.join([*folder_of(package), str(ROOT)]),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, expression: str, **changes: Any) -> Any:
        """Value of ``expression`` after ``changes`` to the host; their names have __ for a dot."""
        said = HOST | {key.replace("__", "."): value for key, value in changes.items()}
        self.host.write_text("".join(f"{key}={value}\n" for key, value in said.items()))
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module", params=["nvidia-ml-py3", "nvidia-ml-py"])
def ask(request, libraries):
    asked = Asked(libraries["new"], request.param)
    yield asked
    asked.close()


@needs_gcc
def test_gpus_are_listed_with_their_facts(ask):
    found, note = ask("nvml.gpus()")
    assert note is None
    usual = {"name": "NVIDIA H200", "driver": "580.82"}
    first = {"index": 0, "memory_bytes": 1000, "compute_capability": "9.0"}
    second = {"index": 1, "memory_bytes": 1001, "compute_capability": "8.6"}
    assert found[0] == usual | first | {"power_limit_watts": 700.5}
    assert found[1] == usual | second | {"power_limit_watts": None}
    assert ask("[nvml.uuids(), nvml.exclusive_gpus()]") == [UUIDS, [1]]
    full, other = ask("nvml.states()")
    assert full == {
        "index": 0,
        "clock_megahertz": 1980,
        "throttled": ["power cap", "software thermal slowdown"],
    }
    assert set(other.values()) == {1, None}


@needs_gcc
def test_a_gpu_that_mig_divides_has_the_memory_of_its_slice(ask):
    name, size = "NVIDIA H200 MIG 1g.18gb", 100
    first = {"name__20": name, "uuid__20": "MIG-Cc", "used__20": 7, "total__20": size}
    second = {"uuid__21": "MIG-dd", "used__21": 8, "total__21": 2 * size}
    slices = {"slices__1": 2} | first | second
    (whole, divided), note = ask("nvml.gpus()", **slices)
    assert (note, whole["name"], whole["memory_bytes"]) == (None, "NVIDIA H200", 1000)
    assert (divided["name"], divided["memory_bytes"]) == (name, size)
    totals = {IDS[0]: 1000, IDS[1]: size, "cc": size, "dd": 2 * size}
    assert ask("nvml.memory_by_uuid('total')", **slices) == totals
    assert ask("nvml.memory_by_uuid()", **slices) == {IDS[0]: 10, IDS[1]: 7, "cc": 7, "dd": 8}


@needs_gcc
def test_unavailable_memory_of_a_process_is_null(ask):
    # nvml.h marks a missing number by the largest one of 64 bits.
    assert ask(f"nvml.process_memory('{IDS[0]}')") == {"41": 1000, "42": None}
    assert ask(f"nvml.process_memory('{IDS[1]}')") == {}


@needs_gcc
@pytest.mark.parametrize(
    ("uuid", "cpus"),
    [(IDS[0], [0, 2, 3, 64, 66, 67]), (IDS[1], []), ("a MIG slice", [])],
)
def test_cpus_near_a_gpu_are_those_of_its_mask(ask, uuid, cpus):
    assert ask(f"setattr(nvml, 'cuda_uuid', lambda i: '{uuid}') or nvml.cpus_near(0)") == cpus


@needs_gcc
def test_violations_are_counted_from_one_reading_to_the_next(ask):
    found = ask(
        "(before := nvml.counters()) and tell(power_held__0=3250000000) or nvml.work_since(before)"
    )
    assert found == [
        {"index": 0, "power_held_seconds": 1.25, "heat_held_seconds": 0.0},
        {"index": 1, "power_held_seconds": None, "heat_held_seconds": None},
    ]
    restarted = ask(
        "(before := nvml.counters()) and tell(power_held__0=10) or nvml.work_since(before)[0]"
    )
    assert restarted["power_held_seconds"] is None


@needs_gcc
def test_an_old_driver_lacks_functions(libraries):
    ask = Asked(libraries["old"], "nvidia-ml-py3")
    (gpu, _), note = ask("nvml.gpus()")
    assert (note, gpu["compute_capability"], gpu["power_limit_watts"]) == (None, None, 700.5)
    assert set(ask("nvml.counters()")["0"].values()) == {None}
    assert ask(f"nvml.process_memory('{IDS[0]}')") == {"41": 1000, "42": None}
    ask.close()


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


def test_memory_is_found_by_uuid_not_by_index(monkeypatch):
    monkeypatch.setattr(nvml, "memory_by_uuid", lambda: {IDS[0]: 10, IDS[1]: 11})
    # As if CUDA_VISIBLE_DEVICES=1,0; torch omits the prefix and writes lower case.
    seen = [SimpleNamespace(uuid=uuid) for uuid in (IDS[1], IDS[0], "one that NVML does not list")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: seen[index])
    assert [nvml.device_memory_used(index) for index in range(4)] == [11, 10, None, None]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ({"own": 900}, 900 - 100),  # NVML knows this process
        ({}, 500 - 100),  # in a container without numbers: all that was added
        ({7: 400}, 500 - 100),  # in a container, by the number on the host
        ({7: 400, 8: 50}, None),  # another job grew meanwhile
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
