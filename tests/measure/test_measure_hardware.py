"""The part of the machine that a job may use."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from schemas.config.run_spec import RunSpec
from schemas.results import Hardware
from tests.orders import run_job
from tests.records import write_tree
from transformer_core.common.cores import apart
from transformer_core.common.digests import NAME
from transformer_core.machine import hardware
from transformer_core.machine.hardware import affinity, cuda_allocator
from transformer_core.run.launcher import worker_environment


@pytest.fixture
def _big_host(monkeypatch):
    """A host with 64 cores and 1,000,000 bytes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    memory = SimpleNamespace(total=1_000_000)
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: memory)


CONTROL_GROUPS = {
    "none": (None, {}, 64, 1_000_000),
    "version 2, a tighter parent": (
        "0::/slice/job",
        {
            "slice/cpu.max": "250000 100000",
            "slice/memory.max": "4000",
            "slice/job/cpu.max": "400000 100000",
            "slice/job/memory.max": "max",
        },
        *(2, 4000),
    ),
    "version 2, a tighter child": (
        "0::/slice/job",
        {
            "slice/cpu.max": "max 100000",
            "slice/memory.max": "6000",
            "slice/job/cpu.max": "350000 100000",
            "slice/job/memory.max": "5000",
        },
        *(3, 5000),
    ),
    "version 2, the path of the host inside a container": (
        "0::/docker/0123",
        {"cpu.max": "50000 100000", "memory.max": "3000"},
        *(1, 3000),
    ),
    "version 1": (
        "5:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/",
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "800000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": "2000",
        },
        *(8, 2000),
    ),
    "version 1, no limit": (
        "5:memory:/\n3:cpu:/",
        {
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
        *(64, 1_000_000),
    ),
}
"""The control groups of a process and their files, and the cores and bytes that it may use."""


def write_groups(root: Path, groups: str | None, files: dict[str, str]) -> None:
    """Writes the control groups of a process below ``root``, the host's /."""
    below = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    below |= {} if groups is None else {"proc/self/cgroup": groups}
    write_tree(root, {name: f"{text}\n" for name, text in below.items()})


@pytest.mark.usefixtures("_big_host")
@pytest.mark.parametrize("case", CONTROL_GROUPS)
def test_control_groups(tmp_path, case):
    groups, files, cores, memory = CONTROL_GROUPS[case]
    write_groups(tmp_path, groups, files)
    assert hardware.usable_cores(tmp_path) == cores
    assert hardware.usable_memory_bytes(tmp_path) == memory


@pytest.mark.usefixtures("_big_host")
def test_affinity_bounds_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    write_groups(tmp_path, "0::/job", {"job/cpu.max": "350000 100000"})
    assert hardware.usable_cores(tmp_path) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert hardware.usable_cores(Path("/nonexistent")) == 7


def test_cpu_of_x86(tmp_path):
    text = (
        "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\n"
        "flags\t\t: fpu sse2 avx2 amx_bf16 avx512f\n\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    write_tree(tmp_path, {"proc/cpuinfo": text})
    assert hardware.cpu_name(tmp_path) == "Some CPU @ 2.0GHz"
    assert hardware.cpu_features(tmp_path) == ["amx_bf16", "avx2", "avx512f"]


def test_cpu_of_arm_and_without_proc(tmp_path, monkeypatch):
    said: dict[str, str] = {}
    monkeypatch.setattr(hardware, "output_of", lambda tool, *_, **__: said.get(tool))
    text = "processor : 0\nFeatures : fp asimd bf16 i8mm sve\n"
    write_tree(tmp_path, {"proc/cpuinfo": text})
    said["lscpu"] = "Architecture: aarch64\nModel name:          Neoverse-V2\n"
    assert hardware.cpu_name(tmp_path) == "Neoverse-V2"
    assert hardware.cpu_features(tmp_path) == ["asimd", "bf16", "i8mm", "sve"]
    said["lscpu"] = "Model name: -\n"
    assert hardware.cpu_name(tmp_path) not in ("-", "")
    said["sysctl"] = "Apple M9"
    without_proc = tmp_path / "nowhere"
    assert hardware.cpu_name(without_proc) == "Apple M9"
    assert hardware.cpu_features(without_proc) == []


def test_allocator_and_its_settings(tmp_path, monkeypatch):
    for name in hardware._ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    pages = "sys/kernel/mm/transparent_hugepage/enabled"
    write_tree(tmp_path, {pages: "always [madvise] never\n"})
    monkeypatch.setattr(hardware, "_malloc_library", lambda: "glibc 2.36")
    assert hardware.allocator(tmp_path) == "glibc 2.36, transparent huge pages: madvise"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    found = hardware.allocator(tmp_path / "nowhere")
    assert found == "glibc 2.36, GLIBC_TUNABLES=glibc.malloc.hugetlb=1"


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
def test_the_library_that_owns_malloc(monkeypatch, file, name):
    def owner(address: object, info: object) -> int:
        if file is not None:
            info._obj.file = file.encode()
        return file is not None

    library = SimpleNamespace(malloc=hardware.ctypes.c_void_p(1), dladdr=owner)
    monkeypatch.setattr(hardware.ctypes, "CDLL", lambda handle: library)
    monkeypatch.setattr(hardware.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert hardware._malloc_library() == name


def test_the_job_describes_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    output = tmp_path / "machine" / "hardware.json"
    assert run_job("hardware", output=output) == 0
    assert {path.name for path in output.parent.iterdir()} == {"hardware.json", NAME}
    found = Hardware.model_validate_json(output.read_text())
    assert found == hardware.read_hardware()
    assert 1 <= found.cores <= found.logical_cpus
    assert found.memory_bytes > 2**28
    assert found.cpu
    assert found.allocator != "unknown"
    assert found.gpus or found.gpu_note
    assert (found.cuda_allocator, found.affinity) == (None, affinity())


def test_without_nvml_the_gpus_of_torch_are_listed(tmp_path, monkeypatch):
    device = SimpleNamespace(name="GPU", total_memory=2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    assert hardware.gpus_of_torch(tmp_path) == []
    write_tree(tmp_path, {"dev/nvidiactl": ""})
    found = hardware.gpus_of_torch(tmp_path)
    assert [(gpu.index, gpu.name, gpu.compute_capability) for gpu in found] == [
        (0, "GPU", "9.0"),
        (1, "GPU", "9.0"),
    ]


def test_the_job_says_why_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "hardware.json"
    assert run_job("hardware", output=output) == 1
    assert str(output.parent) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        ({5}, "cores 5"),
        ({0, 1, 2, 3}, "cores 0-3, 2 threads on one core each"),
        ({0, 1, 4, 6, 7}, "cores 0-1, 4, 6-7, 2 threads on one core each"),
    ],
)
def test_cores_are_listed_as_ranges_and_threads_bound_to_one_are_counted(
    cores, text, tmp_path, monkeypatch
):
    own = os.getpid()
    masks = {own: cores}
    monkeypatch.setattr(os, "sched_getaffinity", lambda t: masks.get(t, {1}), raising=False)
    write_tree(tmp_path, {f"proc/self/task/{own + thread}/comm": "" for thread in range(3)})
    monkeypatch.setattr(hardware, "_ROOT", tmp_path)
    assert affinity() == text


@pytest.mark.parametrize(
    ("backend", "segments", "text"),
    [
        ("native", [{"is_expandable": True}, {}], "native, segments that grow"),
        ("native", [{"is_expandable": False}], "native, segments of fixed size"),
        ("native", [], "native"),
        ("cudaMallocAsync", None, "cudaMallocAsync"),
    ],
)
def test_the_cuda_allocator_is_described_by_its_segments(backend, segments, text, monkeypatch):
    for name in hardware.CUDA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments or [])
    assert cuda_allocator() == text
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "a:b")
    assert cuda_allocator() == f"{text}, PYTORCH_ALLOC_CONF=a:b"


SEGMENTS = """
import torch
from transformer_core.machine.hardware import cuda_allocator
torch.ones(2**20, device="cuda")
print(cuda_allocator())
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("chosen", "segments"), [("default", "of fixed size"), ("expandable_segments", "that grow")]
)
def test_segments_are_as_the_run_spec_says(chosen, segments):
    content = {"variant": "v", "machine": {"cuda_allocator": chosen}}
    given = {k: v for k, v in os.environ.items() if k not in hardware.CUDA_VARIABLES}
    environment = worker_environment(RunSpec.model_validate(content), given)
    done = subprocess.run(
        [sys.executable, "-c", SEGMENTS],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"native, segments {segments}" in done.stdout


KEEPING = """
import os, threading
from transformer_core.common.cores import keep_to

over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
for count in {counts}:
    keep_to(count)
    print([sorted(os.sched_getaffinity(tid)) for tid in (0, thread.native_id)])
over.set()
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system binds no threads to cores"
)
def test_all_threads_are_bound_to_the_last_cores():
    cores = sorted(os.sched_getaffinity(0))
    program = KEEPING.format(counts=[len(cores) + 1, len(cores), 1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str([cores] * 2)] * 2 + [str([cores[-1:]] * 2)]


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        (["0-1", "0-1", "2-3", "2-3"], [0, 2, 1, 3]),  # the threads of a core in a row
        (["0,2", "1,3", "0,2", "1,3"], [0, 1, 2, 3]),
        ([], [0, 1, 2, 3]),  # unknown: every CPU may be a core
    ],
)
def test_the_last_cores_share_no_hardware(siblings, expected, tmp_path):
    for cpu, text in enumerate(siblings):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    assert apart({3, 1, 0, 2}, tmp_path) == expected
