"""The profile for Kubernetes: a dry run, and jobs with a stand-in for kubectl."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from argparse import Namespace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import stand_in_kubectl
from project import ROOT, TINY, Project, kill_group, long_training

PROFILE = "workflow/profiles/kubernetes"
RUN = "results/runs/single/repeat-1"

needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("snakemake_executor_plugin_cluster_generic") is None,
    reason="snakemake-executor-plugin-cluster-generic is not installed",
)


def load(name: str) -> ModuleType:
    """A script of the profile as a module."""
    loader = SourceFileLoader(f"kubernetes_{name}", str(ROOT / PROFILE / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def manifest(
    name: str = "train", threads: int = 4, named: str = "rule", **resources: Any
) -> dict[str, Any]:
    job = {named: name, "threads": threads, "resources": resources}
    options = Namespace(
        image="image", claim="training", mount="/workspace", node_label=None, script="/w/job.sh"
    )
    made: dict[str, Any] = load("submit").manifest(job, options, "/workspace/checkout")
    return made


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_a_pod_requests_the_resources_of_its_job():
    job = manifest(mem_mb=5000, runtime=30, gpu=2)
    resources = container(job)["resources"]
    assert resources["requests"] == {"cpu": "4", "memory": "5000M", "nvidia.com/gpu": "2"}
    assert resources["limits"] == {"memory": "5000M", "nvidia.com/gpu": "2"}
    assert job["spec"]["activeDeadlineSeconds"] == 1800
    assert job["spec"]["backoffLimit"] == 0, "Kubernetes and Snakemake would both try again"
    assert container(job)["workingDir"] == "/workspace/checkout"


def test_jobs_in_a_group_have_its_name():
    """With --groups, Snakemake submits several jobs as one, which has no rule."""
    assert manifest("Small_1", named="groupid")["metadata"]["generateName"] == "small-1-"


def test_without_a_gpu_a_pod_asks_for_none():
    for resources in ({}, {"gpu": 0}):
        needs = container(manifest(**resources))["resources"]
        assert "nvidia.com/gpu" not in needs["requests"] | needs["limits"]


def test_a_job_with_variants_on_several_hosts_has_gpus_for_the_others():
    """Comparisons and the search also time variants on one host."""
    needs = container(manifest(nodes=2, tasks=2, gres="gpu:4"))["resources"]
    assert needs["requests"]["nvidia.com/gpu"] == needs["limits"]["nvidia.com/gpu"] == "4"


def test_a_timed_job_has_its_host_to_itself():
    timed, untimed = manifest(timed=1), manifest("evaluate")
    (apart,) = timed["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    labels = untimed["spec"]["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    assert "affinity" not in untimed["spec"]["template"]["spec"]


@pytest.mark.parametrize("rule", ["train", "self_test_sessions", "x" * 80])
def test_a_job_has_a_name_that_kubernetes_accepts(rule):
    name = manifest(rule)["metadata"]["generateName"] + "abcde"
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("exit 0", "running"),
        ("printf 'Suspended '", "running"),
        ("printf 'SuccessCriteriaMet '", "running"),
        ("printf 'SuccessCriteriaMet Complete '", "success"),
        ("printf 'FailureTarget Failed '", "failed"),
        ("echo 'Error from server (NotFound): jobs.batch not found' >&2; exit 1", "failed"),
        ("echo 'Unable to connect to the server' >&2; exit 1", "running"),
    ],
)
def test_the_state_of_a_job(tmp_path, answer, status):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{answer}\n")
    kubectl.chmod(0o755)
    done = subprocess.run(
        [ROOT / PROFILE / "status", "train-abc"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{status}\n"


@needs_plugin
def test_a_dry_run_plans_the_report(tmp_path, monkeypatch):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\ntouch $0.was-called\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    project = Project(tmp_path / "project", TINY)
    planned = project.planned("results/report.html", "--workflow-profile", PROFILE)
    assert planned["train"] == 2
    assert planned["page"] == 1
    assert not kubectl.with_name("kubectl.was-called").exists()


@needs_plugin
@pytest.mark.slow
def test_jobs_run_in_pods_and_an_evicted_one_resumes(tmp_path, monkeypatch):
    programs, jobs = tmp_path / "bin", tmp_path / "jobs"
    programs.mkdir()
    jobs.mkdir()
    (programs / "kubectl").symlink_to(Path(stand_in_kubectl.__file__))
    Path(stand_in_kubectl.__file__).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_KUBECTL", str(jobs))
    study = TINY | {"training": long_training(400, checkpoint_every=10)}
    project = Project.with_data(tmp_path / "project", study)
    project.make("results/runs/single/spec.json")  # here: a pod starts Snakemake once more
    running = project.start(
        f"{RUN}/metrics.json", f"--workflow-profile={PROFILE}", "--seconds-between-status-checks=1"
    )

    def evict() -> None:
        (file,) = jobs.glob("train-*.json")
        monkeypatch.setattr(stand_in_kubectl, "FOLDER", jobs)
        stand_in_kubectl.evict(file.stem)

    evicting = threading.Thread(target=project.at_a_checkpoint, args=(running, RUN, evict))
    evicting.start()
    try:
        output, _ = running.communicate(timeout=600)
    finally:
        kill_group(running)
        evicting.join()
    assert running.returncode == 0, output[-6000:]
    repeat = project.repeat(RUN)
    assert repeat.status == "ok", repeat.reason
    assert repeat.resumed_at, "it started from the beginning"
    made = [json.loads(file.read_text()) for file in sorted(jobs.glob("train-*.json"))]
    assert len(made) == 2
    assert {job["metadata"]["labels"]["timed"] for job in made} == {"true"}
    memory = [container(job)["resources"]["requests"]["memory"] for job in made]
    assert len(set(memory)) == 2, "the second attempt has more"
