"""Workers that start and end faster than usual Python programs."""

import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from worker_builders import NAME, told, write_worker

from transformer_core.run.host_processes import torchrun
from transformer_core.run.rendezvous import stop_silently

pytestmark = pytest.mark.slow


QUICK = "-m", "transformer_core.run.quick_start"
FORKS = [sys.executable, *QUICK, "--fork=2"]
AGENT = [*torchrun(2), *QUICK]


def start(folder: Path, *options: str, launcher: Sequence[str] = FORKS) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*launcher, NAME, str(folder), *options],
        env=write_worker(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("launcher", [FORKS, AGENT])
def test_the_signal_that_ended_a_rank_is_named_with_it(tmp_path, launcher):
    child = start(tmp_path, "abort", launcher=launcher)
    said = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 128 + signal.SIGABRT
    assert re.search(r"rank [01] ended: SIGABRT", said)


@pytest.mark.parametrize("launcher", [FORKS, AGENT])
def test_torchrun_adds_nothing_to_what_a_failed_rank_said(tmp_path, launcher):
    child = start(tmp_path, "fail", launcher=launcher)
    said = child.communicate(timeout=60)[1].decode()
    assert (child.returncode, "ChildFailedError" in said) == (1, False)


_TELLS_SIGNAL = """
import ctypes
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
print(signal.value)

def main():
    return 0
"""


def test_a_rank_ends_with_its_agent_even_while_it_imports(tmp_path):
    environment = write_worker(tmp_path, _TELLS_SIGNAL)
    for rank, number in (({}, 0), ({"TORCHELASTIC_RUN_ID": "run"}, signal.SIGKILL)):
        told = subprocess.check_output([sys.executable, *QUICK, NAME], env=environment | rank)
        assert int(told) == number


def test_ranks_are_forked_after_the_import_and_a_failing_one_ends_all(tmp_path):
    child = start(tmp_path, "fail", "--more")
    assert child.wait(60) == 1
    first, second = told(tmp_path)
    assert [first["RANK"], second["RANK"]] == ["0", "1"]
    assert first["imported_by"] == second["imported_by"] == child.pid
    assert len({child.pid, first["pid"], second["pid"]}) == 3
    assert first["options"] == ["fail", "--more"]
    assert first["WORLD_SIZE"] == second["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert not any(psutil.pid_exists(rank["pid"]) for rank in (first, second))


@pytest.mark.parametrize("launcher", [FORKS, AGENT])
def test_a_request_to_stop_reaches_all_without_a_warning(tmp_path, launcher):
    child = start(tmp_path, "wait", launcher=launcher)
    while len(told(tmp_path)) < 2:
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (128 + signal.SIGTERM, b"")
    assert not any(psutil.pid_exists(rank["pid"]) for rank in told(tmp_path))


def test_the_end_of_ranks_is_no_warning_even_if_no_signal_was_announced(monkeypatch):
    for name in ("elastic.agent.server.api", "elastic.multiprocessing.api"):
        monkeypatch.setattr(logging.getLogger(f"torch.distributed.{name}"), "filters", [])
    monkeypatch.setattr(logging.getLogger("torch.multiprocessing.spawn"), "filters", [])
    stop_silently()
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")

    def shown(text: str, *values: object) -> bool:
        record = logger.makeRecord(logger.name, logging.WARNING, "api.py", 1, text, values, None)
        return bool(logger.filter(record))

    assert not shown("Closing process %s via signal %s", 7, "SIGTERM")
    assert shown("another warning")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["exit", "7"], 7, ""),
        (["exit", "what went wrong"], 1, "what went wrong\n"),
        (["raise"], 1, "ValueError: a mistake\n"),
    ],
)
def test_a_process_ends_like_its_module(tmp_path, options, code, said):
    child = start(tmp_path, *options, launcher=[sys.executable, *QUICK])
    output, error = child.communicate(timeout=60)
    assert (child.returncode, output) == (code, b"told"), "what was printed is not lost"
    assert error.decode().endswith(said)
    (only,) = told(tmp_path)
    assert only["pid"] == only["imported_by"] == child.pid
    assert only["options"] == options
