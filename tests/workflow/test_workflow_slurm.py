"""The profile for Slurm on a private one: to the report, over two hosts, past a cancelled job."""

import importlib.util
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from private_slurm import PrivateSlurm, impossible
from project import TINY, Project, kill_group

from schemas.results import Repeat, Topology

PROFILE = "workflow/profiles/slurm"
REPORT = "results/report.html"
CANCELLED = "ddp"

STUDY = TINY | {
    "machine": {"device": "cpu", "nodes": 2, "devices_per_node": 1},
    # Long enough to be cancelled between two checkpoints.
    "training": TINY["training"]
    | {
        "steps": 1500,
        "log_every": 100,
        "validate_every": 0,
        "checkpoint_every": 25,
        "schedule": {"kind": "constant", "peak": 1e-3},
    },
    "comparison": {"budget": 0, "pairs": 5, "sessions_least": 1, "sessions_most": 1},
    "search": None,
}

plugin = importlib.util.find_spec("snakemake_executor_plugin_slurm")
reason = impossible() or (None if plugin else "snakemake-executor-plugin-slurm is not installed")
pytestmark = [
    pytest.mark.skipif(reason is not None, reason=f"no private Slurm: {reason}"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSlurm]:
    with PrivateSlurm(tmp_path_factory.mktemp("slurm")) as private:
        yield private


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, slurm: PrivateSlurm) -> Project:
    """The study, run to the report; its two-host training is cancelled once on the way."""
    made = Project(tmp_path_factory.mktemp("project"), STUDY)
    file = made.folder / PROFILE / "config.yaml"
    profile = yaml.safe_load(file.read_text())
    # What a user would put in, and a GPU for the training, which the hosts only pretend to have.
    profile["default-resources"] |= {"cpus_per_task": 1, "slurm_partition": "gpu"}
    profile["set-resources"]["evaluate"] = {"gpu": 1}
    profile |= {"seconds-between-status-checks": 1, "slurm-init-seconds-before-status-checks": 1}
    file.write_text(yaml.safe_dump(profile))
    running = made.start(REPORT, "--workflow-profile", PROFILE)
    canceller = threading.Thread(target=cancel_training, args=(slurm, made.folder, running))
    canceller.start()
    try:
        output, _ = running.communicate()
    finally:
        kill_group(running)
        canceller.join()
    assert running.returncode == 0, output[-6000:]
    (made.folder / "output.txt").write_text(output)
    return made


def cancel_training(slurm: PrivateSlurm, folder: Path, running: subprocess.Popen[str]) -> None:
    """Cancel the job that trains the variant, as soon as it has a checkpoint."""
    checkpoints = folder / f"results/runs/{CANCELLED}/repeat-1/checkpoint"
    while running.poll() is None:
        if any(checkpoints.glob("step-*")):
            (job,) = [
                number
                for number, name in slurm.jobs().items()
                if name.startswith("rule_train") and CANCELLED in name
            ]
            slurm.cancel(job)
            return
        time.sleep(0.02)


def repeat(project: Project, variant: str) -> Repeat:
    file = project.folder / f"results/runs/{variant}/repeat-1/metrics.json"
    return Repeat.model_validate_json(file.read_text())


def topology(project: Project, variant: str) -> Topology:
    found = repeat(project, variant)
    assert found.topology is not None, found.reason
    return found.topology


def test_the_report_is_there(project: Project) -> None:
    assert (project.folder / REPORT).stat().st_size > 10_000


def test_a_single_run_takes_one_host(project: Project) -> None:
    assert repeat(project, "single").status == "ok"
    assert topology(project, "single").nodes == 1


def test_ddp_runs_on_two_hosts(project: Project) -> None:
    found = topology(project, "ddp")
    assert (found.nodes, found.world_size, found.local_world_size) == (2, 2, 1)
    assert [(place.rank, place.node_rank, place.host) for place in found.ranks] == [
        (0, 0, "n1"),
        (1, 1, "n2"),
    ]


def test_the_cancelled_job_was_tried_again_and_went_on(project: Project) -> None:
    found = repeat(project, CANCELLED)
    assert found.status == "ok", found.reason
    assert found.resumed_at, "it began anew"
    assert found.steps == STUDY["training"]["steps"]
    assert "Trying to restart job" in (project.folder / "output.txt").read_text()
