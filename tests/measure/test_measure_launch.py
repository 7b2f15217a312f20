"""The commands that start the processes of a run, on one host or several."""

import json
import os
import socket
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from worker_builders import spec

from schemas.config.run_spec import RunSpec
from schemas.errors import Refusal, Unsupported
from transformer_core.machine.hardware import CUDA_VARIABLES
from transformer_core.run import host_processes as one_host
from transformer_core.run import job
from transformer_core.run import launcher as launch
from transformer_core.run.host_processes import AGENT, QUICK_START, Hosts
from transformer_core.run.launcher import (
    launcher,
    lends_processes_only,
    spans_machines,
    threads_per_process,
)
from transformer_core.run.linked_hosts import Linked

CLUSTER = ("NODE_RANK", "RENDEZVOUS", "SLURM_JOB_ID", "SLURM_STEP_NUM_NODES")
LINK = {"bandwidth": "100Mbit/s"}
WORKER = "transformer_core.run.worker"


@pytest.fixture(autouse=True)
def _outside_a_cluster(monkeypatch):
    for name in CLUSTER:
        monkeypatch.delenv(name, raising=False)


def slurm_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creates Slurm's commands, which answer as in a job of two hosts with 6 CPUs per task."""
    answers = {
        "srun": "exit 1",
        "scontrol": 'case "$*" in\n'
        '"show hostnames n[7-8]") printf "n7\\nn8\\n";;\n'
        '"-o show node n7") echo "NodeName=n7 NodeAddr=10.1.2.3 NodeHostName=seven";;\n'
        '"-o show job 42") echo "JobId=42 NumNodes=2 CPUs/Task=6 ReqTRES=cpu=12";;\n'
        "*) exit 1;;\nesac",
    }
    for name, body in answers.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("link", [None, LINK])
def test_one_process_for_all_gpus_is_unsupported_on_several_hosts(link):
    with pytest.raises(Unsupported, match="of one host from one process"):
        launcher(spec("data_parallel", nodes=2, devices_per_node=2, link=link), WORKER)


def test_processes_of_one_host_are_forked_or_started_by_torchrun(monkeypatch):
    single, ddp = spec("single"), spec("ddp", devices_per_node=3)
    python = [sys.executable, "-m"]
    assert launcher(single, WORKER) == [*python, QUICK_START, WORKER]
    assert launcher(single, WORKER, fresh=True) == [*python, WORKER]
    monkeypatch.setattr(launch, "visible_gpus", list)
    assert launcher(ddp, WORKER) == [*python, QUICK_START, "--fork=3", WORKER]
    fresh = launcher(ddp, WORKER, fresh=True)
    asked = launcher(spec("ddp", device="cuda"), WORKER)
    assert AGENT in asked, "the run itself says that there is no GPU"
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["GPU-1"])
    on_gpus = launcher(ddp, WORKER)
    for command, end in ((fresh, [WORKER]), (on_gpus, [QUICK_START, WORKER])):
        assert AGENT in command
        assert {"--nproc-per-node=3", "--rdzv-endpoint=127.0.0.1:0"} <= set(command)
        assert command[command.index("-m", 3) + 1 :] == end


def test_several_hosts_need_slurm_or_a_rendezvous():
    with pytest.raises(Unsupported, match=r"2 hosts.*Slurm.*NODE_RANK"):
        launcher(spec("ddp", nodes=2, devices_per_node=1), WORKER)


@pytest.mark.parametrize(
    ("node", "rendezvous"), [("0", None), (None, "first:29500"), ("one", "a:1"), ("1", "first")]
)
def test_an_incomplete_rendezvous_is_refused(monkeypatch, node, rendezvous):
    for name, value in [("NODE_RANK", node), ("RENDEZVOUS", rendezvous)]:
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(Refusal, match="set both, to the number of this host"):
        one_host.this_host()


def test_a_host_with_a_number_too_large_is_refused(monkeypatch):
    """It would wait for a first host until the timeout."""
    monkeypatch.setenv("RENDEZVOUS", "first:29500")
    monkeypatch.setenv("NODE_RANK", "2")
    with pytest.raises(Refusal, match=r"NODE_RANK = 2: .* from 0 to 1"):
        launcher(spec("ddp", nodes=2), WORKER)


def test_a_slurm_job_starts_workers_on_all_its_hosts(monkeypatch, tmp_path):
    slurm_commands(tmp_path, monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    command = launcher(spec("ddp", nodes=2, devices_per_node=1), WORKER)
    srun = command[: command.index(sys.executable)]
    assert srun[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(srun)
    assert "--cpus-per-task=6" in srun, "srun would give each task one CPU"
    assert "transformer_core.run.host_processes" in command
    assert "srun" not in launcher(spec("ddp", devices_per_node=2), WORKER), "one host"


def test_a_host_finds_its_place_in_a_slurm_step(monkeypatch, tmp_path):
    slurm_commands(tmp_path, monkeypatch)
    step = {"JOB_ID": "42", "STEP_ID": "1", "STEP_NUM_NODES": "2", "STEP_NODELIST": "n[7-8]"}
    for name, value in (step | {"NODEID": "1"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    host = one_host.this_host()
    assert (host.node_rank, host.address) == (1, "10.1.2.3")
    monkeypatch.setenv("SLURM_STEP_ID", "2")
    other = one_host.this_host()
    assert other.port != host.port, "two steps of a job would connect to each other"
    command = launcher(spec("ddp", nodes=2), WORKER)
    assert command[:4] == [sys.executable, "-m", QUICK_START, one_host.__name__]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "contact slurm controller"),
        ("exit 1", "non-zero exit status 1"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_slurm_that_does_not_answer_is_named_with_the_remedy(monkeypatch, tmp_path, body, reason):
    slurm_commands(tmp_path, monkeypatch)
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{body}\n")
    run = one_host.subprocess.run
    soon = {"timeout": 0.1} if "sleep" in body else {}
    monkeypatch.setattr(one_host.subprocess, "run", lambda *a, **named: run(*a, **(named | soon)))
    match = rf"scontrol -o show node n7: .*{reason}.*\n    remedy: wait"
    with pytest.raises(Refusal, match=match):
        one_host.slurm_address("n7")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refusal, match=r"No such file"):
        one_host.slurm_address("n7")


def test_a_host_whose_place_is_unknown_ends_with_a_sentence(monkeypatch, capfd):
    monkeypatch.setenv("NODE_RANK", "0")
    monkeypatch.setattr(sys, "argv", ["host_processes", *Hosts(2, 1, 60.0).command[-1:], WORKER])
    assert one_host.main() == 1
    said = capfd.readouterr().err
    assert said.startswith("NODE_RANK = '0', RENDEZVOUS = None: set both")
    assert "or neither" in said, "the cluster may set one of them"


def test_a_first_host_of_an_unknown_name_is_named(monkeypatch, capfd):
    unknown = mock.Mock(side_effect=socket.gaierror(-2, "Name or service not known"))
    monkeypatch.setattr(one_host.socket, "gethostbyname", unknown)
    monkeypatch.setenv("NODE_RANK", "0")
    monkeypatch.setenv("RENDEZVOUS", "frist:29500")
    monkeypatch.setattr(sys, "argv", ["host_processes", *Hosts(2, 1, 60.0).command[-1:], WORKER])
    assert one_host.main() == 1
    assert capfd.readouterr().err.startswith("RENDEZVOUS: frist is unknown here")


def test_the_first_host_knows_its_address_for_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr(one_host.socket, "gethostname", lambda: "seven")
    assert one_host.own_address() == "seven"
    slurm_commands(tmp_path, monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert one_host.own_address() == "10.1.2.3", "its name need not lead there"
    monkeypatch.setenv("RENDEZVOUS", "first:29500")
    assert one_host.own_address() == "first"


def test_by_hand_every_host_with_gpus_becomes_its_torchrun(monkeypatch):
    monkeypatch.setattr(one_host, "visible_gpus", lambda: ["GPU-1"])
    monkeypatch.setenv("RENDEZVOUS", "first:29500")
    for node, lends in (("0", False), ("1", True)):
        monkeypatch.setenv("NODE_RANK", node)
        assert lends_processes_only() == lends
    command = launcher(spec("ddp", nodes=2, devices_per_node=4, timeout=7), WORKER, place=2)
    assert command == [*one_host.Hosts(2, 4, 7.0, 2).command, WORKER]
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, given: became.append(given))
    monkeypatch.setattr(sys, "argv", [*command[3:], "--option", "value"])
    told = {"NODE_RANK": "1", "RENDEZVOUS": "127.0.0.1:29500", "SLURMD_NODENAME": "n8"}
    with mock.patch.dict(os.environ, told):
        one_host.main()
        host, interface = os.environ["RUN_HOST"], os.environ["GLOO_SOCKET_IFNAME"]
    python, _, agent, *options = became[0]
    assert (python, agent) == (sys.executable, AGENT)
    assert " ".join(options) == (
        "--nproc-per-node=4 --rdzv-backend=one_address --rdzv-endpoint=127.0.0.1:29502 --nnodes=2 "
        f"--rdzv-conf=rank=1,timeout=7 -m {QUICK_START} {WORKER} --option value"
    )
    assert host == "n8"
    assert interface == one_host.interface_of("127.0.0.1")


def linked(*, devices: int = 1, device: str = "cpu", **parallel: object) -> RunSpec:
    machine = {"nodes": 2, "devices_per_node": devices, "link": LINK, "device": device}
    parallel = {"kind": "ddp"} | parallel
    return RunSpec.model_validate({"variant": "v", "parallel": parallel, "machine": machine})


def told_of_hosts(spec: RunSpec) -> dict[str, Any]:
    """The arguments of the program that makes the hosts."""
    return json.loads(launcher(spec, WORKER)[3])


def test_a_limited_link_joins_two_hosts_on_this_machine(monkeypatch):
    monkeypatch.setattr(launch, "refusal", lambda: None)
    command = launcher(linked(), WORKER)
    assert command == [*Linked(1, 600.0, "namespaces", 1e8, []).command, WORKER]
    assert not spans_machines(linked())
    assert spans_machines(spec("ddp", nodes=2))
    # Without namespaces it is emulated.
    monkeypatch.setattr(launch, "refusal", lambda: "not here")
    for hook in (None, {"kind": "compress", "dtype": "fp16"}):
        assert told_of_hosts(linked(hook=hook))["link"] == "emulated"


@pytest.mark.parametrize(
    "parallel",
    [
        {"kind": "fsdp"},
        {"kind": "central"},
        {"kind": "ddp", "overlap": False},
        {"kind": "ddp", "hook": {"kind": "ring"}},
        {"kind": "ddp", "hook": {"kind": "powersgd"}},
    ],
    ids=str,
)
def test_a_link_that_cannot_be_emulated_is_refused_with_the_reason(monkeypatch, parallel):
    monkeypatch.setattr(launch, "refusal", lambda: "network namespaces are not allowed here")
    with pytest.raises(Unsupported, match=r"namespaces are not allowed here.*emulated only where"):
        launcher(linked(**parallel), WORKER)


def test_hosts_on_one_machine_share_its_gpus(monkeypatch):
    monkeypatch.setattr(launch, "refusal", lambda: None)
    run = linked(devices=2, device="auto")
    four = [f"GPU-{n}" for n in range(4)]
    monkeypatch.setattr(launch, "visible_gpus", lambda: four)
    assert told_of_hosts(run)["gpus"] == four
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["GPU-0"])
    with pytest.raises(Unsupported, match="needs 4 CUDA devices for two hosts on one machine"):
        launcher(run, WORKER)
    monkeypatch.setattr(launch, "visible_gpus", list)
    assert told_of_hosts(run)["gpus"] == []


def test_cores_are_divided_evenly(monkeypatch):
    monkeypatch.setattr(launch, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_process(spec("single")) == 8
    assert threads_per_process(spec("ddp", devices_per_node=4)) == 2
    assert threads_per_process(spec("ddp", devices_per_node=16)) == 1
    assert threads_per_process(spec("ddp", devices_per_node=2, threads=3)) == 3
    assert threads_per_process(spec("ddp", devices_per_node=4, nodes=2)) == 2
    assert threads_per_process(linked(devices=2)) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_per_process(spec("single")) == 4
    assert threads_per_process(spec("ddp", devices_per_node=2)) == 2


def test_waiting_threads_sleep_if_other_jobs_share_their_cores(monkeypatch):
    """The number of threads stays the same, so that certificates apply to timed runs."""
    monkeypatch.setattr(launch, "usable_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    name, made = "OMP_WAIT_POLICY", launch.worker_environment
    alone, beside = made(spec("single"), {}), made(spec("single"), {}, shares_cores=True)
    assert name not in alone
    assert beside == alone | {name: "passive"}
    assert made(spec("single"), {name: "active"}, shares_cores=True)[name] == "active"
    assert name not in made(spec("ddp", devices_per_node=2), {}, shares_cores=True)


def test_segments_of_cuda_memory_grow_unless_the_user_says_otherwise():
    made = launch.worker_environment
    # Torch 2.8 reads only the older name.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert made(spec("single"), {})[name] == "expandable_segments:True"
        assert name not in made(spec("single", cuda_allocator="default"), {})
    for own in CUDA_VARIABLES:
        given = {own: "backend:cudaMallocAsync"}
        theirs = made(spec("single"), given)
        assert {key: theirs[key] for key in CUDA_VARIABLES if key in theirs} == given


def test_ranks_and_torchrun_options_of_a_cluster_are_not_those_of_a_job(monkeypatch):
    """Kubeflow, for example, sets them for the command of every pod."""
    given = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NNODES"), "2") | {"MINE": "2"}
    for name, value in {**given, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}.items():
        monkeypatch.setenv(name, value)
    seen: list[str] = []
    quiet = SimpleNamespace(run=lambda log_file: seen.extend(os.environ))
    monkeypatch.setattr(job, "read_job", lambda order: quiet)
    monkeypatch.setattr(sys, "argv", ["job", "--order", "-"])
    assert job.main() == 0
    assert given.keys() & {*seen} == {"MINE"}


@pytest.mark.parametrize("name", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"])
def test_the_run_spec_sets_the_number_of_cached_kernels(name):
    made = launch.worker_environment
    assert made(spec("single"), {name: "9"})[name] == "256"
    assert made(spec("single", kept_kernels=16), {})[name] == "16"
    assert made(spec("single", kept_kernels=None), {name: "9"})[name] == "9"
    assert name not in made(spec("single", kept_kernels=None), {})
