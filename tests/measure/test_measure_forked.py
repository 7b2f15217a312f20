"""Processes of a run that are forked from one that has imported what they need."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

WORKER = """
import json, os, sys, time
from pathlib import Path

IMPORTED_BY = os.getpid()

def main():
    folder, what = Path(sys.argv[1]), sys.argv[2]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    told = {name: os.environ[name] for name in names}
    told |= {"imported_by": IMPORTED_BY, "pid": os.getpid(), "options": sys.argv[2:]}
    file = folder / f"rank-{told['RANK']}.json"
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)
    if what == "fail" and told["RANK"] == "1":
        sys.exit(3)
    if what != "end":
        time.sleep(100)
"""


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    (folder / "worker_of_this_test.py").write_text(WORKER)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    launcher = [sys.executable, "-m", "transformer_core.measure.forked", "--processes=2"]
    return subprocess.Popen(
        [*launcher, "worker_of_this_test", str(folder), *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stderr=subprocess.DEVNULL,
    )


def told(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def test_ranks_are_forked_from_what_imported_their_module(tmp_path: Path) -> None:
    child = start(tmp_path, "end", "--more")
    assert child.wait(60) == 0
    first, second = told(tmp_path)
    assert [first["RANK"], second["RANK"]] == ["0", "1"]
    assert first["imported_by"] == second["imported_by"] == child.pid
    assert len({child.pid, first["pid"], second["pid"]}) == 3
    assert first["options"] == ["end", "--more"]
    assert first["WORLD_SIZE"] == second["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


def test_one_that_fails_takes_the_others_with_it(tmp_path: Path) -> None:
    child = start(tmp_path, "fail")
    assert child.wait(60) == 1
    assert not any(psutil.pid_exists(rank["pid"]) for rank in told(tmp_path))


def test_a_request_to_stop_reaches_all(tmp_path: Path) -> None:
    child = start(tmp_path, "wait")
    while len(told(tmp_path)) < 2:
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) not in (0, None)
    assert not any(psutil.pid_exists(rank["pid"]) for rank in told(tmp_path))
