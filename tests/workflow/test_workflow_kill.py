"""A run that is killed in the middle goes on and ends as if nothing had happened."""

import time
from pathlib import Path

import pandas as pd
import pytest
from project import TINY, Project, kill_group

from schemas.results import Repeat

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


def wait_for_checkpoint(folder: Path, seconds: float = 120.0) -> None:
    """Until a checkpoint lies in ``folder``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(folder.glob("checkpoint/step-*")):
            return
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint in {folder} within {seconds} s")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.with_data(tmp_path_factory.mktemp("killed"), STUDY)


def test_kill_9_and_again(project: Project) -> None:
    variant = "ddp"
    folder = project.folder / f"results/runs/{variant}/repeat-1"
    target = TARGET.format(variant)

    running = project.start(target)
    wait_for_checkpoint(folder)
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
