"""How a run that did not finish becomes a status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from schemas.errors import Diverged, Unsupported
from transformer_core.measure.outcome import (
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
    ],
)
def test_classify(error: BaseException, status: str, words: str) -> None:
    found, reason = classify(error)
    assert found == status
    assert words in reason


def test_a_real_allocation_that_does_not_fit_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert classify(caught.value)[0] == "oom"


def test_the_cause_is_told_and_not_its_consequences(tmp_path: Path) -> None:
    write_outcome(tmp_path, 1, RuntimeError("Connection closed by peer"))
    write_outcome(tmp_path, 0, torch.OutOfMemoryError("Tried to allocate 1 GiB"))
    outcome = read_outcomes(tmp_path)
    assert outcome is not None
    assert (outcome["status"], outcome["rank"]) == ("oom", 0)


def test_of_equal_ends_the_first_is_told(tmp_path: Path) -> None:
    write_outcome(tmp_path, 1, RuntimeError("first"))
    write_outcome(tmp_path, 0, RuntimeError("second"))
    outcome = read_outcomes(tmp_path)
    assert outcome is not None
    assert "first" in outcome["reason"]
    assert "RuntimeError: first" in outcome["traceback"]
    clear_outcomes(tmp_path)
    assert read_outcomes(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    worker = (
        "import os, pathlib, sys, time\n"
        "from transformer_core.measure.outcome import supervised\n"
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
