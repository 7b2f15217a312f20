"""Workers that start and end faster than usual Python programs."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from worker_builders import NAME, told, write_worker

from transformer_core.run.host_processes import torchrun

pytestmark = pytest.mark.slow

WORKER = """
import json, os, sys, time
from pathlib import Path

IMPORTED_BY = os.getpid()

def main():
    folder, what = Path(sys.argv[1]), sys.argv[2]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    told = {name: os.environ.get(name) for name in names}
    told |= {"imported_by": IMPORTED_BY, "pid": os.getpid(), "options": sys.argv[2:]}
    file = folder / f"rank-{told['RANK'] or 0}.json"
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)
    print("told", end="")
    if what == "exit":
        sys.exit(int(sys.argv[3]) if sys.argv[3].isdigit() else sys.argv[3])
    if what == "raise":
        raise ValueError("a mistake")
    if what == "fail" and told["RANK"] == "1":
        while not (folder / "rank-0.json").exists():
            time.sleep(0.02)
        sys.exit(3)
    if what == "abort" and told["RANK"] == "1":
        os.abort()
    time.sleep(100)
"""


def start(folder: Path, *options: str, fork: int | None = 2) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "transformer_core.run.quick_start"]
    launcher += [] if fork is None else [f"--fork={fork}"]
    return subprocess.Popen(
        [*launcher, NAME, str(folder), *options],
        env=write_worker(folder, WORKER),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_exit_code_names_the_signal_that_ended_a_rank(tmp_path):
    assert start(tmp_path, "abort").wait(60) == 128 + signal.SIGABRT
    command = [*torchrun(2), "-m", "transformer_core.run.quick_start", NAME, str(tmp_path), "abort"]
    done = subprocess.run(command, env=write_worker(tmp_path, WORKER), capture_output=True)
    assert done.returncode == 128 + signal.SIGABRT
    assert b"SIGABRT" in done.stderr


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


def test_a_request_to_stop_reaches_all(tmp_path):
    child = start(tmp_path, "wait")
    while len(told(tmp_path)) < 2:
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) not in (0, None)
    assert not any(psutil.pid_exists(rank["pid"]) for rank in told(tmp_path))


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["exit", "7"], 7, ""),
        (["exit", "what went wrong"], 1, "what went wrong\n"),
        (["raise"], 1, "ValueError: a mistake\n"),
    ],
)
def test_a_process_ends_like_its_module(tmp_path, options, code, said):
    child = start(tmp_path, *options, fork=None)
    output, error = child.communicate(timeout=60)
    assert (child.returncode, output) == (code, b"told"), "what was printed is not lost"
    assert error.decode().endswith(said)
    (only,) = told(tmp_path)
    assert only["pid"] == only["imported_by"] == child.pid
    assert only["options"] == options
