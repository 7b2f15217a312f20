"""The machine as a job may use it."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.results import Hardware
from tests.orders import run_job
from transformer_core.common.digests import NAME
from transformer_core.machine import hardware

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files below a folder that stands for /."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.fixture
def _big_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 64 cores and 1,000,000 bytes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    memory = SimpleNamespace(total=1_000_000)
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: memory)


CONTROL_GROUPS = {
    "none": ({}, 64, 1_000_000),
    "version 2, no limit": (
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/memory.max": "max\n",
        },
        64,
        1_000_000,
    ),
    "version 2": (
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/job/cpu.max": "350000 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": "5000\n",
        },
        3,
        5000,
    ),
    "version 2, a tighter parent": (
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/slice/memory.max": "4000\n",
            "sys/fs/cgroup/slice/job/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": "max\n",
        },
        2,
        4000,
    ),
    "version 2, the path of the host inside a container": (
        {
            "proc/self/cgroup": "0::/docker/0123\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/memory.max": "3000\n",
        },
        1,
        3000,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "800000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2000\n",
        },
        8,
        2000,
    ),
    "version 1, no limit": (
        {
            "proc/self/cgroup": "5:memory:/\n3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        64,
        1_000_000,
    ),
}


@pytest.mark.usefixtures("_big_host")
@pytest.mark.parametrize(("files", "cores", "memory"), CONTROL_GROUPS.values(), ids=CONTROL_GROUPS)
def test_control_groups(tree: Tree, files: dict[str, str], cores: int, memory: int) -> None:
    root = tree(files)
    assert hardware.usable_cores(root) == cores
    assert hardware.usable_memory_bytes(root) == memory


@pytest.mark.usefixtures("_big_host")
def test_affinity_bounds_cores(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    files, _, _ = CONTROL_GROUPS["version 2"]
    assert hardware.usable_cores(tree(files)) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert hardware.usable_cores(Path("/nonexistent")) == 7


def test_cpu_of_x86(tree: Tree) -> None:
    root = tree(
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\n"
            "flags\t\t: fpu sse2 avx2 amx_bf16 avx512f\n\nprocessor\t: 1\nmodel name\t: Other\n"
        }
    )
    assert hardware.cpu_name(root) == "Some CPU @ 2.0GHz"
    assert hardware.cpu_features(root) == ["amx_bf16", "avx2", "avx512f"]


def test_cpu_of_arm(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree({"proc/cpuinfo": "processor : 0\nFeatures : fp asimd bf16 i8mm sve\n"})
    said = {"lscpu": "Architecture: aarch64\nModel name:          Neoverse-V2\n"}
    monkeypatch.setattr(hardware, "_output", lambda command, **_: said.get(command[0], ""))
    assert hardware.cpu_name(root) == "Neoverse-V2"
    assert hardware.cpu_features(root) == ["asimd", "bf16", "i8mm", "sve"]
    said["lscpu"] = "Model name: -\n"
    assert hardware.cpu_name(root) not in ("-", "")


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"sysctl": "Apple M9\n"}
    monkeypatch.setattr(hardware, "_output", lambda command, **_: said.get(command[0], ""))
    assert hardware.cpu_name(tmp_path) == "Apple M9"
    assert hardware.cpu_features(tmp_path) == []
    said.clear()
    assert hardware.cpu_name(tmp_path)


def test_commands_that_fail_say_nothing() -> None:
    assert hardware._output(["no-such-command-anywhere"]) == ""
    assert hardware._output(["sh", "-c", "echo half; exit 3"]) == ""
    assert hardware._output(["sh", "-c", 'echo "$WORD"'], WORD="said") == "said\n"


def test_allocator_and_its_settings(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in hardware._ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    root = tree({"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    monkeypatch.setattr(hardware, "_malloc_library", lambda: "glibc 2.36")
    assert hardware.allocator(root) == "glibc 2.36, transparent huge pages: madvise"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert hardware.allocator(root / "nowhere") == (
        "glibc 2.36, GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/usr/lib/libjemalloc.so.2", "jemalloc (libjemalloc.so.2)"),
        ("/opt/lib/libtcmalloc_minimal.so.4", "tcmalloc (libtcmalloc_minimal.so.4)"),
        ("/opt/lib/libmimalloc.so.2.1", "mimalloc (libmimalloc.so.2.1)"),
        ("/lib/x86_64-linux-gnu/libc.so.6", "glibc 2.36"),
        ("/lib/x86_64-linux-gnu/libc-2.31.so", "glibc 2.36"),
        ("/usr/lib/system/libsystem_malloc.dylib", "libsystem_malloc.dylib"),
        (None, "unknown"),
    ],
)
def test_the_library_that_owns_malloc(
    monkeypatch: pytest.MonkeyPatch, file: str | None, name: str
) -> None:
    def owner(address: object, info: object) -> int:
        if file is not None:
            info._obj.file = file.encode()  # type: ignore[attr-defined]
        return file is not None

    library = SimpleNamespace(malloc=hardware.ctypes.c_void_p(1), dladdr=owner)
    monkeypatch.setattr(hardware.ctypes, "CDLL", lambda handle: library)
    monkeypatch.setattr(hardware.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert hardware._malloc_library() == name


def test_this_machine() -> None:
    found = hardware.read_hardware()
    assert 1 <= found.cores <= found.logical_cpus
    assert found.memory_bytes > 2**28
    assert found.cpu
    assert found.allocator != "unknown"
    assert found.gpus or found.gpu_note


def test_job_writes_a_whole_file(tmp_path: Path) -> None:
    output = tmp_path / "machine" / "hardware.json"
    assert run_job("hardware", output=output) == 0
    assert Hardware.model_validate_json(output.read_text()) == hardware.read_hardware()
    left = {path.name for path in output.parent.iterdir()}
    assert left == {"hardware.json", NAME}


def test_job_says_why_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "hardware.json"
    assert run_job("hardware", output=output) == 1
    assert str(output.parent) in capsys.readouterr().err
