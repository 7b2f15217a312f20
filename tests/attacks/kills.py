"""Kills a small study at many moments, and checks that the same command ends in the same results.

Kills Snakemake by SIGKILL after a random time, alone or with its processes, and repeats the same
command until the study is complete; then the next study begins. All results that do not depend on
the clock (pairs, tokenizer, shards, weights, losses, translations) must equal those of an
undisturbed study to the last bit.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import psutil

from tests.attacks.tally import Tally, Verdict
from transformer_core.common.tables import read_table

STUDY = Path(__file__).with_name("killed_study.yaml")
ROOT = Path(__file__).parents[2]

Way = Literal["snakemake", "group", "all"]
"""Which processes are killed: Snakemake alone, so that its jobs are orphaned; its process group; or
all that it started, as when a control group runs out of memory."""
WAYS: tuple[Way, ...] = get_args(Way)

_MARK = "KILLED_STUDY"
"""Environment variable of all processes that a command starts: the folder of its study."""

_WHILE_STARTING = 2.0
"""A kill after fewer seconds hits Snakemake while it plans."""
_LONGEST_START = 600.0


def go(
    folder: Path, targets: Sequence[str], seconds: float, way: Way = "all"
) -> tuple[int | None, str]:
    """Runs the command: its exit code and messages. The code is None if it was killed, so many
    ``seconds`` after its first job began."""
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
    """Waits until a job has begun, since a busy host takes long to plan, or the command has ended.
    The shortest times may be over before a job begins."""
    end = time.monotonic() + (seconds if seconds < _WHILE_STARTING else _LONGEST_START)
    while child.poll() is None and time.monotonic() < end:
        if _BEGUN.search(said.read_text(encoding="utf-8", errors="replace")):
            return
        time.sleep(0.1)


def end_all(folder: Path) -> None:
    """Kills the processes that commands have left behind, and waits for their end."""
    left = _started_for(folder)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=30)


def wait_until_quiet(folder: Path, seconds: float = 60.0) -> None:
    """Waits for the end of orphaned jobs, so that the results can be compared."""
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
    """All running processes that commands for this folder have started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == str(folder.resolve()):
                found.append(process)
    return found


_BEGUN = re.compile(r"^Job (\d+): (.+)$", re.M)
_ENDED = re.compile(r"^Finished jobid: (\d+)", re.M)


def at_work(said: str) -> str:
    """The jobs that were running when the output of a command ended."""
    ended = set(_ENDED.findall(said))
    jobs = {job for number, job in _BEGUN.findall(said) if number not in ended}
    return " and ".join(sorted(jobs)) or ("between jobs" if ended else "starting")


_SAME = (
    "data/*/pairs/*.arrow",
    "data/*/tokenizer.json",
    "data/*/shards/*/*.arrow",
    "runs/*/repeat-*/model.safetensors",
    "equivalence/trajectories/*/final.safetensors",
)
"""Files that must be equal to the last bit."""
_SAME_FIELDS = {
    "runs/*/repeat-*/metrics.json": ("status", "validations"),
    "runs/*/evaluation.json": ("bleu", "samples"),
    "equivalence/*.json": ("status", "deviations"),
}
"""Records in which these fields must be equal."""


def what_must_be_the_same(results: Path) -> dict[str, str]:
    """Digests of all results that do not depend on the clock, by file."""
    found = {
        str(path.relative_to(results)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in _SAME
        for path in sorted(results.glob(pattern))
    }
    for path in sorted(results.glob("runs/*/repeat-*/steps.parquet")):
        table = read_table(path).drop_columns(["input_wait_seconds"])
        found[str(path.relative_to(results))] = _digest(table.to_pydict())
    for pattern, kept in _SAME_FIELDS.items():
        for path in sorted(results.glob(pattern)):
            record = json.loads(path.read_text())
            found[str(path.relative_to(results))] = _digest([record[field] for field in kept])
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


TARGETS = (
    "results/runs/single/metrics.json",
    "results/runs/ddp/metrics.json",
    "results/equivalence/ddp.json",
)
_LONGEST = 1_800.0
"""Seconds after which a study hangs."""
_MOST = 12
"""Most kills of one study. After these it may end, and another begins."""


def run(
    moments: int, seed: int, folder: Path, targets: Sequence[str] = TARGETS, longest: float = 20.0
) -> Tally:
    """The verdicts on ``moments`` kills, each at most ``longest`` seconds after a start."""
    tally = Tally("kills", seed)
    undisturbed, study = folder / "right", folder / "killed"
    try:
        code, said = go(undisturbed, targets, _LONGEST)
        if code != 0:
            raise OSError(f"the study fails even without a kill:\n{said}")
        right = what_must_be_the_same(undisturbed / "results")
        while (killed := tally.total.total()) < moments:
            kills, code, said = _killed(study, targets, seed, range(killed, moments), longest)
            found = what_must_be_the_same(study / "results")
            shutil.rmtree(study)
            # A study that ends before a kill counts, too: otherwise this might never end.
            for number, during in (kills or {killed: "nothing, as it ended before"}).items():
                tally.add(f"during {during}", number, *_judged(code, said, found, right))
    finally:
        end_all(study)
        end_all(undisturbed)
    return tally


def _killed(
    study: Path, targets: Sequence[str], seed: int, moments: range, longest: float
) -> tuple[dict[int, str], int | None, str]:
    """Kills a study some times and lets it end: the running jobs at each kill, and its end."""
    kills: dict[int, str] = {}
    for number in moments[:_MOST]:
        chance = random.Random(f"{seed}/{number}")
        way, seconds = WAYS[number % len(WAYS)], chance.uniform(0.5, longest)
        code, said = go(study, targets, seconds, way)
        if code is not None:
            break
        kills[number] = at_work(said)
        print(f"kill {number}, of {way}, after {seconds:.1f} s, {kills[number]}", flush=True)
    else:
        code, said = go(study, targets, _LONGEST)
    wait_until_quiet(study)
    return kills, code, said


def _judged(
    code: int | None, said: str, found: dict[str, str], right: dict[str, str]
) -> tuple[Verdict, str]:
    if code is None:
        return "hung", said[-1_000:]
    if code:
        return "unclear", said[-2_000:]
    other = [name for name in right if found.get(name) != right[name]]
    if other:
        return "silent", f"not the same as without a kill: {', '.join(other)}"
    return "same", ""
