"""The status and reason of a run that did not finish."""

import errno
import io
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError

from schemas.config.run_spec import RunSpec
from schemas.errors import Diverged, PeerLost, Unsupported
from tests.records import write_tree
from transformer_core.common.endings import failures
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.run import oom, supervisor
from transformer_core.run.oom import free_bytes, kernel_kills, reason_of
from transformer_core.run.order import Order
from transformer_core.run.statuses import (
    Outcome,
    classify,
    clear_outcomes,
    read_outcomes,
    write_outcome,
)
from transformer_core.run.supervisor import no_loopback, obstacle

SEGMENT = (
    "Error while creating shared memory segment /dev/shm/nccl-x (size 33030528), error: No space "
    "left on device (28)"
)
NO_SEGMENT = (
    "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error\nncclSystemError: System call "
    f"failed.\nLast error:\n{SEGMENT}"
)
SAME_GPU = "NCCL error\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device"
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
STATE = "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: [2, 3]."
EXECUTION = "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Unsupported("needs 2 CUDA devices, this host has 0"), "unsupported", "needs 2 CUDA"),
        (Diverged("training loss at step 7 is nan"), "diverged", "step 7"),
        (ValueError("no such head"), "failed", "ValueError: no such head"),
        (KeyError(), "failed", "KeyError"),
        (
            RuntimeError(NO_SEGMENT),
            "failed",
            f"Last error: {SEGMENT}. Remedy: make room in /dev/shm",
        ),
        (RuntimeError(SAME_GPU), "unsupported", "machine.devices_per_node"),
        (RuntimeError(BUSY), "unsupported", ""),
        (RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be"), "failed", ILLEGAL),
        (RuntimeError(STATE), "failed", "state_dict for Linear: size mismatch for weight: [2, 3]."),
        (RuntimeError(EXECUTION), "failed", EXECUTION),
        (ValueError("no memory of it"), "failed", ""),
    ],
)
def test_classify(error, status, words):
    found, reason = classify(error)
    assert found == status
    assert words in reason
    assert "might be" not in reason
    assert len(classify(ValueError("long " * 1000))[1]) < 700


def test_a_real_allocation_that_is_too_large_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert classify(caught.value)[0] == "oom"


def test_the_first_and_most_telling_outcome_is_reported(tmp_path):
    write_outcome(tmp_path, 1, RuntimeError("first"))
    write_outcome(tmp_path, 0, RuntimeError("second"))
    outcome = read_outcomes(tmp_path)
    assert "first" in (outcome.reason or "")
    assert "RuntimeError: first" in (outcome.traceback or "")
    # A peer on a host whose clock is slow.
    peer = Outcome.of(RuntimeError("[gloo/pair.cc] Connection closed by peer"), 4)
    slow = peer.model_copy(update={"time": 0.0})
    (tmp_path / "outcome-4.json").write_text(slow.model_dump_json())
    assert read_outcomes(tmp_path).rank == 1
    write_outcome(tmp_path, 2, torch.OutOfMemoryError("Tried to allocate 1 GiB"))
    outcome = read_outcomes(tmp_path)
    assert (outcome.status, outcome.rank) == ("oom", 2)
    clear_outcomes(tmp_path)
    assert read_outcomes(tmp_path) is None


def test_a_reason_is_the_same_in_every_locale(tmp_path, monkeypatch):
    # What Python assumes about a file without an encoding, in a locale of western Europe.
    monkeypatch.setattr(io, "text_encoding", lambda encoding, level=2: encoding or "latin-1")
    write_outcome(tmp_path, 0, ValueError("no file data/Übung.de"))
    assert read_outcomes(tmp_path).reason == "ValueError: no file data/Übung.de"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "metrics.json"), "make room there"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "run.log"),
            "give this user permission",
        ),
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
def test_temporary_errors_are_tried_again(error, words):
    outcome = Outcome.of(error)
    assert (outcome.status, outcome.again) == ("failed", True)
    assert words in (outcome.reason or "")
    assert not Outcome.of(ValueError("no such head")).again, "the program's own error is final"


def test_a_remedy_that_ends_with_a_command_ends_its_line():
    error = CorpusError("has changed", file="a.arrow", remedy="make it: snakemake a.arrow")
    assert "snakemake a.arrow\n" in (Outcome.of(error).reason or "")


@pytest.fixture
def attempted(tmp_path, monkeypatch):
    """Attempts a run whose workers write the outcome of an error, if any, and end with this code."""

    def attempt(code: int, error: Exception | None = None) -> Outcome | None:
        def end(order: Order) -> int:
            if error is not None:
                write_outcome(order.output, 0, error)
            return code

        monkeypatch.setattr(supervisor, "run_workers", end)
        order = Order(spec=RunSpec(variant="v"), output=tmp_path, command="")
        return supervisor.attempt(order, tmp_path / "metrics.json", tmp_path / "metrics.json")

    return attempt


def test_the_end_of_workers_that_give_no_reason(tmp_path, attempted):
    result = tmp_path / "metrics.json"
    ends = [
        (134, "exit code 134, SIGABRT", signal.SIGABRT),
        (255, "(exit code 255)", 0),
        (-9, "signal SIGKILL", signal.SIGKILL),
        (-40, "signal 40", 40),
    ]
    for before, (code, words, number) in enumerate(ends):
        assert failures(result) == before
        outcome = attempted(code)
        assert (outcome.status, outcome.again, outcome.signal) == ("failed", True, number)
        assert words in outcome.reason
    with pytest.raises(SystemExit):
        attempted(-signal.SIGTERM)
    assert failures(result) == len(ends), "workers that were asked to stop have not failed"


def test_workers_that_wrote_their_result_have_no_outcome(tmp_path, monkeypatch):
    result = tmp_path / "metrics.json"
    order = Order(spec=RunSpec(variant="v"), output=tmp_path, command="")

    def end(order: Order) -> int:
        result.write_text("{}")
        return 0

    monkeypatch.setattr(supervisor, "run_workers", end)
    assert supervisor.attempt(order, result) is None
    monkeypatch.setattr(supervisor, "run_workers", lambda order: 0)
    assert supervisor.attempt(order, result).again, "an earlier result is none of this attempt"


def test_ranks_do_not_start_where_they_could_not_connect(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "no_loopback", lambda: "No loopback.")
    monkeypatch.setattr(supervisor, "launcher", Mock(side_effect=Unsupported("starts")))
    for devices in (1, 2):
        parallel = {"kind": "ddp"} if devices > 1 else {"kind": "single"}
        spec = RunSpec(variant="v", parallel=parallel, machine={"devices_per_node": devices})
        order = Order(spec=spec, output=tmp_path, command="")
        outcome = supervisor.attempt(order, tmp_path / "metrics.json")
        assert outcome.reason.startswith("No loopback." if devices > 1 else "starts")
    assert (outcome.status, outcome.again) == ("failed", True)


def test_workers_that_were_asked_to_stop_have_no_result_whatever_the_kernel_killed_meanwhile(
    tmp_path, attempted, monkeypatch
):
    kills = iter([3, 4])
    monkeypatch.setattr(oom, "kernel_kills", lambda: next(kills))
    with pytest.raises(SystemExit):
        attempted(-signal.SIGINT)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (PeerLost("rank 1 on host n1 does not answer"), signal.SIGABRT),
        (ValueError("no such head"), 0),
    ],
)
def test_the_signal_that_ended_a_rank_explains_what_its_peers_report(
    attempted, monkeypatch, error, number
):
    monkeypatch.setattr(oom, "kernel_kills", lambda: 0)
    outcome = attempted(128 + signal.SIGABRT, error)
    assert outcome.signal == number
    assert ("SIGABRT ended a process" in outcome.reason) == (number > 0)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "oom"),
        (PeerLost("rank 1 on host n1 does not answer"), "oom"),
        (RuntimeError("[gloo/pair.cc] Connection closed by peer"), "oom"),
        (RuntimeError(SAME_GPU), "unsupported"),
        (ValueError("no such head"), "failed"),
        (OSError(errno.ENOSPC, "No space left on device", "metrics.json"), "failed"),
    ],
)
def test_a_process_that_the_kernel_killed_explains_only_ends_without_a_cause(
    attempted, monkeypatch, error, status
):
    """It may be a process of somebody else on this host."""
    kills = iter([3, 4])
    monkeypatch.setattr(oom, "kernel_kills", lambda: next(kills))
    assert attempted(1, error).status == status


MIB = 2**20
CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 23.68 GiB of "
    "which 1.25 GiB is free. Including non-PyTorch memory, this process has 22.42 GiB in use."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 10485760 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's RLIMIT_DATA")
def test_the_limit_of_a_process_bounds_free_memory():
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


def test_control_groups_bound_free_memory_and_count_killed_processes(tmp_path):
    group = "sys/fs/cgroup/job"
    memory = {f"{group}/memory.max": f"{100 * MIB}\n", f"{group}/memory.current": f"{99 * MIB}\n"}
    write_tree(tmp_path, {"proc/self/cgroup": "0::/job\n"} | memory)
    assert free_bytes(tmp_path) == MIB
    # Files that were read stay in memory only until it is needed.
    cached = f"anon 7\nfile {9 * MIB}\ninactive_file {3 * MIB}\nactive_file {2 * MIB}\n"
    write_tree(tmp_path, {f"{group}/memory.stat": cached})
    assert free_bytes(tmp_path) == 6 * MIB
    write_tree(tmp_path, {f"{group}/memory.max": "max\n"})
    assert free_bytes(tmp_path) > MIB
    # The kernel counts for the host and for the group: the larger number holds.
    write_tree(tmp_path, {"proc/vmstat": "nr_free_pages 12\noom_kill 3\n"})
    assert kernel_kills(tmp_path) == 3
    write_tree(tmp_path, {f"{group}/memory.events": "oom 9\noom_kill 5\n"})
    assert kernel_kills(tmp_path) == 5
    assert kernel_kills(tmp_path / "nothing") == 0


def test_cached_files_leave_memory_free_in_control_groups_of_version_1(tmp_path):
    group = "sys/fs/cgroup/memory/job"
    files = {
        f"{group}/memory.limit_in_bytes": f"{100 * MIB}\n",
        f"{group}/memory.usage_in_bytes": f"{99 * MIB}\n",
        # Without the groups below it, and with them.
        f"{group}/memory.stat": f"inactive_file 7\ntotal_inactive_file {3 * MIB}\n",
    }
    write_tree(tmp_path, {"proc/self/cgroup": "4:memory:/job\n"} | files)
    assert free_bytes(tmp_path) == 4 * MIB


GPU = "The GPU ran out of memory. Try a smaller batch"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError(CUDA),
            "GPU 3 ran out of memory: 2.50 GiB asked for, 1.25 GiB free.",
        ),
        (torch.OutOfMemoryError("CUDA error: out of memory"), GPU),
        (RuntimeError("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory."), GPU),
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
        (RuntimeError(CPU), "The host ran out of memory: 10.00 MiB asked for, 3.00 MiB free."),
    ],
)
def test_every_report_of_exhausted_memory_is_recognised(error, said, monkeypatch):
    monkeypatch.setattr(oom, "free_bytes", lambda: 3 * MIB)
    status, reason = classify(error)
    assert status == "oom"
    assert reason.startswith(said)
    assert "model.checkpoint: layers" in reason


@pytest.mark.parametrize(
    ("free", "ran_out"), [(20 * MIB, True), (9000 * MIB, False), (None, False)]
)
def test_cublas_that_does_not_start_is_out_of_memory_if_little_is_free(monkeypatch, free, ran_out):
    monkeypatch.setattr(oom, "_free_on_device", lambda: free)
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate")
    reason = reason_of(error)
    assert (reason is not None) == ran_out
    if ran_out:
        assert str(reason).startswith("The GPU ran out of memory: 20.00 MiB free.")


def test_too_few_files(tmp_path):
    assert obstacle(tmp_path, threads=4) is None
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 8, before[1])
    )
    try:
        found = obstacle(tmp_path, threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found.startswith("Too few files may be open")
    assert "ulimit -n" in found


def test_too_few_threads(tmp_path, monkeypatch):
    started = iter(range(5))

    def start(self: object) -> None:
        if next(started, None) is None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(supervisor.threading.Thread, "start", start)
    monkeypatch.setattr(supervisor.threading.Thread, "join", lambda self: None)
    found = obstacle(tmp_path, threads=100_000)
    assert "only 5 of the run's 100000 threads" in found
    assert "machine.threads" in found


@pytest.mark.parametrize(
    ("full", "remedy"),
    [
        ("/dev/shm", "give it more room"),
        ("scratch", "or set TMPDIR"),
        ("results", "make room there"),
    ],
)
def test_a_full_disk(full, remedy, tmp_path, monkeypatch):
    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=4096 if str(path).endswith(full) else 1 << 40)

    monkeypatch.setattr(supervisor.shutil, "disk_usage", usage)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    found = obstacle(tmp_path / "results", threads=1)
    assert f"{full} is full: 4096 bytes are free" in found
    assert remedy in found


def test_no_loopback():
    program = "from transformer_core.run.supervisor import no_loopback\nprint(no_loopback())"
    command = ["unshare", "-Urn", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(f"network namespaces cannot be made here: {done.stderr}")
    assert "cannot reach one another at 127.0.0.1" in done.stdout
    assert "ip link set lo up" in done.stdout
    assert no_loopback() is None
