"""The profile for Slurm, on a private Slurm: runs on one host and on two, and interrupted jobs."""

import importlib.util
import threading
from collections.abc import Callable
from functools import partial

import pytest
import yaml
from private_slurm import PrivateSlurm, impossible
from project import TINY, Project, kill_group, long_training

from schemas.results import Topology

PROFILE = "workflow/profiles/slurm"
RUN = "results/runs/{}/repeat-1"
SPECS = [f"results/runs/{variant}/spec.json" for variant in ("single", "ddp")]
TARGETS = [RUN.format(variant) + "/metrics.json" for variant in ("single", "ddp")]
TARGETS.append("results/machine/hardware.json")
REQUEUED, CANCELLED = "single", "ddp"

STUDY = TINY | {
    "machine": TINY["machine"] | {"nodes": 2, "devices_per_node": 1},
    # Long enough to be cancelled between two checkpoints.
    "training": long_training(300, checkpoint_every=20),
    "comparison": {"budget": 0, "pairs": 5, "sessions_least": 1, "sessions_most": 1},
    # Other tests run the jobs of these.
    "search": None,
    "projection": None,
    "memory": None,
}

# The executor looks less and less often while no job ends. That would take too long in a test.
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
    """The runs of the study, each interrupted once. The other jobs of a study use the same profile;
    each would take as long again."""
    made = Project.with_data(tmp_path_factory.mktemp("project"), STUDY)
    file = made.folder / PROFILE / "config.yaml"
    profile = yaml.safe_load(file.read_text())
    # Settings that a user would add, and GPUs, which the hosts only simulate.
    profile["default-resources"] |= {"cpus_per_task": 1, "slurm_partition": "gpu"}
    profile["set-resources"]["hardware"] = {"gpu": 1}
    profile["set-resources"]["train"]["gres"] = "'gpu:1'"
    profile["slurm-init-seconds-before-status-checks"] = 1
    file.write_text(yaml.safe_dump(profile))
    made.make(*SPECS)  # here, because a job of Slurm starts Snakemake once more
    (made.folder / "looks_often.py").write_text(LOOKS_OFTEN)
    made.program = "looks_often"
    running = made.start(*TARGETS, "--workflow-profile", PROFILE)
    threads = [
        threading.Thread(
            target=made.at_a_checkpoint,
            args=(running, RUN.format(variant), partial(interrupt, slurm, variant, way)),
        )
        for variant, way in [(REQUEUED, slurm.requeue), (CANCELLED, slurm.cancel)]
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


def interrupt(slurm: PrivateSlurm, variant: str, way: Callable[[str], None]) -> None:
    """Interrupts the job that trains the variant."""
    (job,) = [
        number
        for number, name in slurm.jobs().items()
        if name.startswith("rule_train") and variant in name
    ]
    way(job)


def topology(project: Project, variant: str) -> Topology:
    found = project.repeat(RUN.format(variant))
    assert found.topology is not None, found.reason
    return found.topology


def test_a_single_run_takes_one_host_and_ddp_two(project):
    assert topology(project, "single").nodes == 1
    found = topology(project, "ddp")
    assert (found.nodes, found.world_size, found.local_world_size) == (2, 2, 1)
    places = [(place.rank, place.node_rank, place.host) for place in found.ranks]
    assert places == [(0, 0, "n1"), (1, 1, "n2")]


def test_jobs_get_the_hosts_and_gpus_that_they_request(project, slurm):
    jobs = {name: slurm.describe(job) for job, name in slurm.jobs("all").items()}
    train = {name: jobs[f"rule_train_wildcards_{name}_1"] for name in ("single", "ddp")}
    assert "NumNodes=1 " in train["single"]
    assert "NumNodes=2 " in train["ddp"]
    for job in train.values():
        assert "TresPerNode=gres:gpu:1" in job
        assert "OverSubscribe=NO" in job, "another job may disturb a timed one"
    assert "TresPerJob=gres:gpu:1" in jobs["rule_hardware"]


@pytest.mark.parametrize("variant", [REQUEUED, CANCELLED])
def test_an_interrupted_job_resumed(project, variant):
    found = project.repeat(RUN.format(variant))
    assert found.status == "ok", found.reason
    assert found.resumed_at, "it started from the beginning"
    assert found.steps == STUDY["training"]["steps"]
    assert "Trying to restart job" in (project.folder / "output.txt").read_text()
