"""Running out of memory: what is said of it."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transformer_core.run import oom
from transformer_core.run.oom import free_bytes, kernel_kills, reason_of

MIB = 2**20
CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 23.68 GiB of "
    "which 1.25 GiB is free. Including non-PyTorch memory, this process has 22.42 GiB in use."
)


def test_a_host_tells_what_was_asked_for_and_what_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "free_bytes", lambda: 3 * MIB)
    error = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 10485760 bytes. Error code 12 (Cannot allocate memory)"
    )
    reason = reason_of(error)
    assert reason is not None
    assert reason.startswith("The host ran out of memory: 10.00 MiB asked for, 3.00 MiB free.")


@pytest.mark.parametrize("error", [ValueError("no memory of it"), RuntimeError("shape"), OSError()])
def test_other_errors_are_none_of_it(error: Exception) -> None:
    assert reason_of(error) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's RLIMIT_DATA")
def test_a_limit_of_a_process_bounds_what_is_free() -> None:
    code = (
        "import resource\n"
        "from transformer_core.run.oom import *\n"
        f"limit = data_bytes() + {64 * MIB}\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))\n"
        "print(free_bytes())\n"
        "try:\n"
        f"    bytearray({80 * MIB})\n"
        "except MemoryError as error:\n"
        "    print(reason_of(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    free, reason = done.stdout.splitlines()
    assert 0 < int(free) <= 64 * MIB
    assert "ran out of memory" in reason
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 64 * MIB


def test_control_groups_bound_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{100 * MIB}\n")
    (group / "memory.current").write_text(f"{99 * MIB}\n")
    assert free_bytes(tmp_path) == MIB
    (group / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) > MIB


def test_processes_ended_by_the_kernel_are_counted(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 12\noom_kill 3\n")
    assert kernel_kills(tmp_path) == 3
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("oom 9\noom_kill 5\n")
    assert kernel_kills(tmp_path) == 5
    assert kernel_kills(tmp_path / "nothing") == 0


GPU = "The GPU ran out of memory. Try a smaller batch"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError(CUDA),
            "GPU 3 ran out of memory: 2.50 GiB asked for, 1.25 GiB free. Try a",
        ),
        (torch.OutOfMemoryError("CUDA error: out of memory"), GPU),
        (RuntimeError("CUDA error: out of memory\nkernel errors might be asynchronous"), GPU),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), GPU),
        (RuntimeError("CUDA driver error: out of memory"), GPU),
        (RuntimeError("Triton Error [CUDA]: out of memory"), GPU),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), GPU),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), GPU),
        (RuntimeError("unhandled cuda error\nLast error:\nFailed to CUDA calloc 41 bytes"), GPU),
        (RuntimeError("ncclUnhandledCudaError\nCuda failure 2 'out of memory'"), GPU),
        (MemoryError(), "The host ran out of memory: "),
        (RuntimeError("std::bad_alloc"), "The host ran out of memory: "),
    ],
)
def test_ways_to_say_it(error: Exception, said: str) -> None:
    reason = reason_of(error)
    assert reason is not None
    assert reason.startswith(said)
    assert "model.checkpoint: layers" in reason


@pytest.mark.parametrize(
    ("free", "ran_out"), [(20 * MIB, True), (9000 * MIB, False), (None, False)]
)
def test_cublas_that_does_not_start_had_no_room_where_little_is_free(
    monkeypatch: pytest.MonkeyPatch, free: int | None, ran_out: bool
) -> None:
    monkeypatch.setattr(oom, "_free_on_device", lambda: free)
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate")
    reason = reason_of(error)
    assert (reason is not None) == ran_out
    if ran_out:
        assert str(reason).startswith("The GPU ran out of memory: 20.00 MiB free.")
