"""A run that is stopped and killed in the middle resumes and ends with the same result.

`python -m tests.attacks kills --cases 100` kills at a hundred random moments.
"""

import contextlib
import os
import signal

import pandas as pd
import psutil
import pytest
from project import TINY, Project, kill_group, long_training, wait_until

from tests.attacks.kills import what_must_be_the_same

RUN = "results/runs/ddp/repeat-1"
STUDY = TINY | {"training": long_training(120, log_every=1, checkpoint_every=5, validate_every=60)}


TARGET = f"{RUN}/metrics.json"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project.with_data(tmp_path_factory.mktemp("killed"), STUDY)


@pytest.fixture(scope="module")
def stopped(project):
    """Stops Snakemake at a checkpoint; gives its output and the processes that it left."""
    running = project.start(TARGET)
    project.at_a_checkpoint(running, RUN, running.terminate)
    said = running.communicate()[0]
    return said, psutil.wait_procs(processes_of(project), timeout=60)[1]


def test_a_request_to_stop_ends_the_study_and_its_jobs(project, stopped):
    """Snakemake itself would wait until the training has finished."""
    said, left = stopped
    assert left == []
    assert said.count("The same command continues it.") == 1
    assert "Error in rule" not in said


def test_the_same_command_resumes_a_run_that_was_stopped_and_then_killed(project, stopped):
    folder, target = project.folder / RUN, TARGET
    before = {path.name for path in folder.glob("checkpoint/step-*")}
    assert before, "stopped too late to show anything"
    running = project.start(target)
    assert wait_until(
        lambda: {path.name for path in folder.glob("checkpoint/step-*")} - before, running
    )
    kill_group(running)
    assert not (project.folder / target).exists(), "killed too late to show anything"

    project.make(target)
    resumed = project.repeat(RUN)
    assert resumed.status == "ok", resumed.reason
    assert len(resumed.resumed_at) == 2
    steps = pd.read_parquet(folder / "steps.parquet")
    assert not (folder / "checkpoint").exists()

    project.make(target, "--forcerun", "train")
    whole = project.repeat(RUN)
    assert not whole.resumed_at
    same = steps.columns.drop("input_wait_seconds").tolist()
    uninterrupted = pd.read_parquet(folder / "steps.parquet")
    pd.testing.assert_frame_equal(steps[same], uninterrupted[same], check_exact=True)
    assert whole.validations == resumed.validations


def test_data_is_right_after_a_kill_of_snakemake_alone(project, tmp_path):
    """Its job still runs, and the same command starts the job again at the same time."""
    killed = Project(tmp_path / "project", STUDY)
    target = "results/data/grammar/shards/test/manifest.json"
    running = killed.start(target)
    data = killed.folder / "results/data/grammar"
    assert wait_until(lambda: any(data.glob("*")), running)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (killed.folder / target).exists(), "killed too late to show anything"
    killed.make(target)
    right = what_must_be_the_same(project.folder / "results")
    found = what_must_be_the_same(killed.folder / "results")
    assert {"data/grammar/tokenizer.json"} < found.keys()
    assert found.items() <= right.items()


def processes_of(project: Project) -> list[psutil.Process]:
    """The processes that use the project's own packages."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PYTHONPATH") == str(project.folder):
                found.append(process)
    return found
