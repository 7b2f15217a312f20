"""The command that is given again and again, and three ways of killing it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import psutil

STUDY = Path(__file__).with_name("study.yaml")
ROOT = Path(__file__).parents[3]

Way = Literal["snakemake", "group", "all"]
"""What is killed: Snakemake alone, so that its jobs have nobody any more; its process group; or
all that it started, as when a control group runs out of memory."""
WAYS: tuple[Way, ...] = get_args(Way)

_MARK = "KILLED_STUDY"
"""Environment variable of all that a command starts: the folder of its study."""

_WHILE_STARTING = 2.0
"""Kills after fewer seconds come while Snakemake plans."""
_LONGEST_START = 600.0


def go(
    folder: Path, targets: Sequence[str], seconds: float, way: Way = "all"
) -> tuple[int | None, str]:
    """Give the command: its exit code and what it said; None if it was killed, so many ``seconds``
    after its first job began."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--configfile", str(STUDY), "--nocolor"]
    with (folder / "said.log").open("w+", encoding="utf-8") as said:
        child = subprocess.Popen(
            [*command, "--cores", "2", *targets],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT), _MARK: str(folder.resolve())},
            start_new_session=True,
        )
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            wait_for_a_job(child, folder / "said.log", seconds)
            code = child.wait(seconds)
        if code is None:
            _kill(child.pid, way, folder)
            child.wait()
        said.seek(0)
        return code, said.read()


def wait_for_a_job(child: subprocess.Popen[bytes], said: Path, seconds: float) -> None:
    """Until a job has begun, or the command has ended: a busy host takes long to plan. Of the
    shortest times some are over before."""
    end = time.monotonic() + (seconds if seconds < _WHILE_STARTING else _LONGEST_START)
    while child.poll() is None and time.monotonic() < end:
        if _BEGUN.search(said.read_text(encoding="utf-8", errors="replace")):
            return
        time.sleep(0.1)


def end_all(folder: Path) -> None:
    """Kill what commands have left behind, and wait until it is gone."""
    left = _started_for(folder)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=30)


def wait_until_quiet(folder: Path, seconds: float = 60.0) -> None:
    """Until jobs that lost their Snakemake have ended, so that the results can be compared."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and _started_for(folder):
        time.sleep(0.2)


def _kill(pid: int, way: Way, folder: Path) -> None:
    if way == "snakemake":
        os.kill(pid, signal.SIGKILL)
        return
    os.killpg(pid, signal.SIGKILL)
    if way == "all":
        end_all(folder)


def _started_for(folder: Path) -> list[psutil.Process]:
    """All that commands for this folder have started, and that is still there."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == str(folder.resolve()):
                found.append(process)
    return found


_BEGUN = re.compile(r"^Job (\d+): (.+)$", re.M)
_ENDED = re.compile(r"^Finished jobid: (\d+)", re.M)


def at_work(said: str) -> str:
    """Which jobs were at work when a command said no more."""
    ended = set(_ENDED.findall(said))
    jobs = {job for number, job in _BEGUN.findall(said) if number not in ended}
    return " and ".join(sorted(jobs)) or ("between jobs" if ended else "starting")
