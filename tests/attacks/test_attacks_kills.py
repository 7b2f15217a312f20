"""The campaign of kills, with a stand-in for the study."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.attacks import kills
from tests.attacks.kills import at_work, wait_for_a_job
from tests.attacks.tally import Tally

Ends = Sequence[int | None]
SAID = """
[Sun Nov 22 15:04:50 2026]
Job 2: Train single, repeat 1
Reason: Missing output files: results/runs/single/repeat-1/metrics.json

Job 3: Tokenize the test split
Finished jobid: 3 (Rule: shards)
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, ends: Ends, losses: Sequence[float]) -> list[str]:
    """Commands end so, one after the other, and leave these losses; the ways of the kills."""
    left = iter(zip(ends, losses, strict=True))
    ways: list[str] = []

    def go(
        folder: Path, targets: Sequence[str], seconds: float, way: str = "all"
    ) -> tuple[int | None, str]:
        code, loss = next(left)
        file = folder / "results/runs/single/repeat-1/metrics.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"status": "ok", "validations": [loss]}))
        ways.extend([way] if code is None else [])
        return code, SAID

    monkeypatch.setattr(kills, "go", go)
    return ways


def found(folder: Path, moments: int = 3) -> Tally:
    return kills.run(moments, 1, folder, ["x"], 1.0)


def test_a_study_that_goes_on_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = stand_in(monkeypatch, [0, None, None, None, 0], [2.5] * 5)
    assert found(tmp_path).counts == {"during Train single, repeat 1": {"same": 3}}
    assert ways == ["snakemake", "group", "all"]


@pytest.mark.parametrize(
    ("ends", "losses", "verdicts"),
    [
        ([0, None, None, None, 0], [2.5, 2.5, 2.5, 2.5, 2.25], {"silent": 3}),
        ([0, None, None, 1, None, 0], [2.5] * 6, {"same": 1, "unclear": 2}),
        ([0, None, None, None, None], [2.5] * 5, {"hung": 3}),
    ],
    ids=["another number", "the command does not go on", "no end"],
)
def test_faults_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: Ends,
    losses: Sequence[float],
    verdicts: dict[str, int],
) -> None:
    stand_in(monkeypatch, ends, losses)
    assert found(tmp_path).total == verdicts


def test_a_study_is_killed_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [0, *[None] * 12, 0, *[None] * 2, 0]
    stand_in(monkeypatch, ends, [2.5] * len(ends))
    assert found(tmp_path, 14).total == {"same": 14}


def test_the_jobs_at_work_are_found() -> None:
    assert at_work(SAID) == "Train single, repeat 1"
    assert at_work(SAID + "Finished jobid: 2 (Rule: train)\n") == "between jobs"
    assert at_work("Building DAG of jobs...\n") == "starting"


def test_times_count_from_the_first_job(tmp_path: Path) -> None:
    said = tmp_path / "said.log"
    said.touch()
    command = f"sleep 0.3; echo 'Job 2: Train single, repeat 1' > {said}; sleep 60"
    child = subprocess.Popen(["sh", "-c", command])
    wait_for_a_job(child, said, 30.0)
    assert at_work(said.read_text()) == "Train single, repeat 1"
    child.kill()
    child.wait()
    said.write_text("")
    wait_for_a_job(child, said, 30.0)  # it has ended


def test_the_shortest_times_may_be_over_before(tmp_path: Path) -> None:
    said = tmp_path / "said.log"
    said.touch()
    child = subprocess.Popen(["sleep", "60"])
    wait_for_a_job(child, said, 0.2)
    assert child.poll() is None
    child.kill()
    child.wait()
