"""A run that is killed in the middle resumes and ends with the same result.

`python -m tests.attacks kills --cases 100` has a hundred kills at moments from a seed.
"""

import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from project import TINY, Project, kill_group

from schemas.results import Repeat
from tests.attacks.kills import what_must_be_the_same

TARGET = "results/runs/{}/repeat-1/metrics.json"
STUDY = TINY | {
    "training": TINY["training"]
    | {
        "steps": 120,
        "checkpoint_every": 5,
        "validate_every": 60,
        "schedule": {"kind": "constant", "peak": 1e-3},
    }
}


def wait_for(folder: Path, pattern: str, seconds: float = 120.0) -> None:
    """Until a file of that pattern lies in ``folder``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(folder.glob(pattern)):
            return
        time.sleep(0.02)
    raise AssertionError(f"no {pattern} in {folder} within {seconds} s")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project.with_data(tmp_path_factory.mktemp("killed"), STUDY)


def test_kill_9_and_again(project):
    variant = "ddp"
    folder = project.folder / f"results/runs/{variant}/repeat-1"
    target = TARGET.format(variant)

    running = project.start(target)
    wait_for(folder, "checkpoint/step-*")
    kill_group(running)
    assert not (project.folder / target).exists(), "killed too late to show anything"

    # The same command, and nothing else.
    project.make(target)
    resumed = Repeat.model_validate_json((project.folder / target).read_text())
    assert resumed.status == "ok", resumed.reason
    assert resumed.resumed_at
    steps = pd.read_parquet(folder / "steps.parquet")
    assert not (folder / "checkpoint").exists()

    project.make(target, "--forcerun", "train")
    whole = Repeat.model_validate_json((project.folder / target).read_text())
    assert not whole.resumed_at
    same = steps.columns.drop("input_wait_seconds").tolist()
    uninterrupted = pd.read_parquet(folder / "steps.parquet")
    pd.testing.assert_frame_equal(steps[same], uninterrupted[same], check_exact=True)
    assert whole.validations == resumed.validations


def test_data_whose_snakemake_is_killed_alone(project, tmp_path):
    """Its job has nobody any more, and the same command starts it again beside it."""
    killed = Project(tmp_path / "project", STUDY)
    target = "results/data/grammar/shards/test/manifest.json"
    running = killed.start(target)
    wait_for(killed.folder, "results/data/grammar/*")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (killed.folder / target).exists(), "killed too late to show anything"
    killed.make(target)
    right = what_must_be_the_same(project.folder / "results")
    found = what_must_be_the_same(killed.folder / "results")
    assert {"data/grammar/tokenizer.json"} < found.keys()
    assert found.items() <= right.items()
