"""The profile for Slurm on a private one: runs of one host and of two, past jobs cut short."""

import importlib.util
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from private_slurm import PrivateSlurm, impossible
from project import TINY, Project, kill_group

from schemas.results import Repeat, Topology

PROFILE = "workflow/profiles/slurm"
TARGETS = ["results/runs/single/repeat-1/metrics.json", "results/runs/ddp/evaluation.json"]
REQUEUED, CANCELLED = "single", "ddp"

STUDY = TINY | {
    "machine": TINY["machine"] | {"nodes": 2, "devices_per_node": 1},
    # Long enough to be cancelled between two checkpoints.
    "training": TINY["training"]
    | {
        "steps": 300,
        "log_every": 100,
        "validate_every": 0,
        "checkpoint_every": 20,
        "schedule": {"kind": "constant", "peak": 1e-3},
    },
    "comparison": {"budget": 0, "pairs": 5, "sessions_least": 1, "sessions_most": 1},
    # Jobs of their own, which other tests run.
    "search": None,
    "projection": None,
    "memory": None,
}

# The longer no job ends, the less often the executor looks. A test has no time for that.
LOOKS_OFTEN = """
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(lambda self: 2, lambda self, seconds: None)
main()
"""

plugin = importlib.util.find_spec("snakemake_executor_plugin_slurm")
reason = impossible() or (None if plugin else "snakemake-executor-plugin-slurm is not installed")
pytestmark = [
    pytest.mark.skipif(reason is not None, reason=f"no private Slurm: {reason}"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with PrivateSlurm(tmp_path_factory.mktemp("slurm")) as private:
        yield private


@pytest.fixture(scope="module")
def project(tmp_path_factory, slurm):
    """The runs of the study, both of which are cut short once on the way. The other jobs reach
    their hosts by the same profile; each would take as long again."""
    made = Project.with_data(tmp_path_factory.mktemp("project"), STUDY)
    # Of the jobs that make data, one is enough of a queue.
    shutil.rmtree(made.folder / "results/data/grammar/shards/test")
    file = made.folder / PROFILE / "config.yaml"
    profile = yaml.safe_load(file.read_text())
    # What a user would put in, and GPUs, which the hosts only pretend to have.
    profile["default-resources"] |= {"cpus_per_task": 1, "slurm_partition": "gpu"}
    profile["set-resources"]["evaluate"] = {"gpu": 1}
    profile["set-resources"]["train"]["gres"] = "'gpu:1'"
    profile["slurm-init-seconds-before-status-checks"] = 1
    file.write_text(yaml.safe_dump(profile))
    (made.folder / "looks_often.py").write_text(LOOKS_OFTEN)
    made.program = "looks_often"
    running = made.start(*TARGETS, "--workflow-profile", PROFILE)
    threads = [
        threading.Thread(target=cut_short, args=(slurm, made.folder, running, variant, cut))
        for variant, cut in [(REQUEUED, slurm.requeue), (CANCELLED, slurm.cancel)]
    ]
    for thread in threads:
        thread.start()
    try:
        output, _ = running.communicate()
    finally:
        kill_group(running)
        for thread in threads:
            thread.join()
    assert running.returncode == 0, output[-6000:]
    (made.folder / "output.txt").write_text(output)
    return made


def cut_short(
    slurm: PrivateSlurm,
    folder: Path,
    running: subprocess.Popen[str],
    variant: str,
    cut: Callable[[str], None],
) -> None:
    """End the job that trains the variant, as soon as it has a checkpoint."""
    checkpoints = folder / f"results/runs/{variant}/repeat-1/checkpoint"
    while running.poll() is None:
        if any(checkpoints.glob("step-*")):
            (job,) = [
                number
                for number, name in slurm.jobs().items()
                if name.startswith("rule_train") and variant in name
            ]
            cut(job)
            return
        time.sleep(0.02)


def repeat(project: Project, variant: str) -> Repeat:
    file = project.folder / f"results/runs/{variant}/repeat-1/metrics.json"
    return Repeat.model_validate_json(file.read_text())


def topology(project: Project, variant: str) -> Topology:
    found = repeat(project, variant)
    assert found.topology is not None, found.reason
    return found.topology


def test_a_single_run_takes_one_host_and_ddp_two(project):
    assert topology(project, "single").nodes == 1
    found = topology(project, "ddp")
    assert (found.nodes, found.world_size, found.local_world_size) == (2, 2, 1)
    places = [(place.rank, place.node_rank, place.host) for place in found.ranks]
    assert places == [(0, 0, "n1"), (1, 1, "n2")]


def test_jobs_have_the_hosts_and_gpus_that_they_ask_for(project, slurm):
    jobs = {name: slurm.describe(job) for job, name in slurm.jobs("all").items()}
    train = {name: jobs[f"rule_train_wildcards_{name}_1"] for name in ("single", "ddp")}
    assert "NumNodes=1 " in train["single"]
    assert "NumNodes=2 " in train["ddp"]
    for job in train.values():
        assert "TresPerNode=gres:gpu:1" in job
        assert "OverSubscribe=NO" in job, "another job may disturb what is timed"
    assert "TresPerJob=gres:gpu:1" in jobs["rule_evaluate_wildcards_ddp"]


@pytest.mark.parametrize("variant", [REQUEUED, CANCELLED])
def test_what_was_cut_short_went_on(project, variant):
    found = repeat(project, variant)
    assert found.status == "ok", found.reason
    assert found.resumed_at, "it began anew"
    assert found.steps == STUDY["training"]["steps"]
    assert "Trying to restart job" in (project.folder / "output.txt").read_text()
