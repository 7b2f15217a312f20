"""How a run that did not finish becomes a status."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from schemas.config.run_spec import RunSpec
from schemas.errors import Diverged, PeerLost, Unsupported
from transformer_core.common.endings import count_failure, failures
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.run import supervisor
from transformer_core.run.order import Order
from transformer_core.run.statuses import (
    Outcome,
    classify,
    clear_outcomes,
    read_outcomes,
    write_outcome,
)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Unsupported("needs 2 CUDA devices, this host has 0"), "unsupported", "needs 2 CUDA"),
        (Diverged("training loss at step 7 is nan"), "diverged", "step 7"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom", "2 GiB"),
        (MemoryError(), "oom", "smaller batch"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
            "oom",
            "smaller batch",
        ),
        (ValueError("no such head"), "failed", "ValueError: no such head"),
        (KeyError(), "failed", "KeyError"),
        (
            RuntimeError(
                "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error\nncclSystemError: "
                "System call failed.\nLast error:\nError while creating shared memory segment "
                "/dev/shm/nccl-x (size 33030528), error: No space left on device (28)"
            ),
            "failed",
            "Last error: Error while creating shared memory segment /dev/shm/nccl-x (size 33030528), "
            "error: No space left on device (28). Remedy: make room in /dev/shm",
        ),
        (
            RuntimeError(
                "NCCL error\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device"
            ),
            "unsupported",
            "machine.devices_per_node",
        ),
    ],
)
def test_classify(error: BaseException, status: str, words: str) -> None:
    found, reason = classify(error)
    assert found == status
    assert words in reason


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (
            "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.29.7\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nFailed to CUDA calloc async 24 bytes",
            "oom",
        ),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "unsupported"),
        ("CUDA error: an illegal memory access was encountered", "failed"),
        ("CUDA error: device-side assert triggered", "failed"),
        ("CUDA error: unspecified launch failure", "failed"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "failed"),
        ("CUDA error: no kernel image is available for execution on the device", "failed"),
    ],
)
def test_words_of_cuda_and_its_libraries(text: str, status: str) -> None:
    found, reason = classify(RuntimeError(text))
    assert found == status
    if status == "failed":
        assert text in reason, "the cause stands in the reason"


def test_a_real_allocation_that_does_not_fit_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert classify(caught.value)[0] == "oom"


def test_the_cause_is_told_and_not_its_consequences(tmp_path: Path) -> None:
    write_outcome(tmp_path, 1, RuntimeError("Connection closed by peer"))
    write_outcome(tmp_path, 0, torch.OutOfMemoryError("Tried to allocate 1 GiB"))
    outcome = read_outcomes(tmp_path)
    assert outcome is not None
    assert (outcome.status, outcome.rank) == ("oom", 0)


def test_of_equal_ends_the_first_is_told(tmp_path: Path) -> None:
    write_outcome(tmp_path, 1, RuntimeError("first"))
    write_outcome(tmp_path, 0, RuntimeError("second"))
    outcome = read_outcomes(tmp_path)
    assert outcome is not None
    assert "first" in (outcome.reason or "")
    assert "RuntimeError: first" in (outcome.traceback or "")
    clear_outcomes(tmp_path)
    assert read_outcomes(tmp_path) is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    worker = (
        "import os, pathlib, sys, time\n"
        "from transformer_core.run.statuses import supervised\n"
        "with supervised(pathlib.Path('.')):\n"
        "    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "    time.sleep(120)\n"
    )
    supervisor = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]])\n"
        "time.sleep(120)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", supervisor, worker, str(pid_file)])
    for _ in range(600):
        if pid_file.exists() and pid_file.read_text():
            break
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    child = int(pid_file.read_text())
    process.kill()
    process.wait()
    for _ in range(100):
        if not _alive(child):
            return
        try:
            subprocess.run(["sleep", "0.05"], check=True)
        except OSError:
            break
    pytest.fail(f"process {child} outlived its supervisor")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat").read_text() if Path(f"/proc/{pid}/stat").exists() else ") Z"
    return status.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "metrics.json"), "make room there"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (PermissionError(errno.EACCES, "Permission denied", "run.log"), "give permission"),
        (OSError(errno.EIO, "Input/output error", "shard-00000.arrow"), "look at the disk"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (
            SafetensorError("Error while serializing: IoError(Os { code: 28, kind: StorageFull })"),
            "make room there",
        ),
        (PeerLost("rank 1 on host n1 does not answer"), "rank 1"),
        (CorpusError("has changed", file="shard-00000.arrow", remedy="make it again"), "has chang"),
    ],
)
def test_what_another_attempt_may_mend_is_tried_again(error: BaseException, words: str) -> None:
    outcome = Outcome.of(error)
    assert (outcome.status, outcome.again) == ("failed", True)
    assert words in (outcome.reason or "")


def test_a_fault_of_a_program_is_not_tried_again() -> None:
    outcome = Outcome.of(ValueError("no such head"))
    assert not outcome.again
    assert outcome.traceback


def test_the_count_of_failures_grows(tmp_path: Path) -> None:
    result = tmp_path / "metrics.json"
    assert failures(result) == 0
    count_failure(result)
    count_failure(result)
    assert failures(result) == 2
    assert failures(tmp_path / "another.json") == 0


@pytest.mark.parametrize(
    ("code", "words"), [(1, "exit code 1"), (-9, "signal SIGKILL"), (134, "exit code 134")]
)
def test_workers_without_words_have_a_status(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "run_workers", lambda *_: code)
    order = Order(spec=RunSpec(variant="v"), output=tmp_path, command="")
    outcome = supervisor.attempt(order, tmp_path / "metrics.json")
    assert outcome is not None
    assert (outcome.status, outcome.again) == ("failed", True)
    assert words in (outcome.reason or "")


def test_workers_that_were_asked_to_stop_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "run_workers", lambda *_: -15)
    order = Order(spec=RunSpec(variant="v"), output=tmp_path, command="")
    with pytest.raises(SystemExit):
        supervisor.attempt(order, tmp_path / "metrics.json")
