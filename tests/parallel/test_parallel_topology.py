"""The rank of a process, the number of processes, their start, and the cores of each."""

import os
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from schemas.config.parallel import Link, Machine
from schemas.errors import Unsupported
from tests.forked import output_of
from tests.parallel.gradient_cases import spec_of
from transformer_core.parallel import settling
from transformer_core.parallel.fsdp import FsdpStrategy
from transformer_core.parallel.settling import bind_threads, core_share, settle
from transformer_core.parallel.topology import Process, fsdp_fault, this_process
from transformer_core.run.launcher import launcher, threads_per_process
from transformer_core.tune.techniques import TECHNIQUES

CPU = torch.device("cpu")
ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def _lone_process(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_a_rank_of_a_host(monkeypatch):
    for name, value in zip(ENVIRONMENT, (3, 4, 1, 2), strict=True):
        monkeypatch.setenv(name, str(value))
    process = this_process(Machine(device="cpu", nodes=2, devices_per_node=2), 2)
    assert (process.rank, process.local_rank, process.nodes) == (3, 1, 2)
    assert not process.is_main


def test_data_parallel_is_one_process_for_all_devices():
    spec = spec_of(parallel={"kind": "data_parallel"}, machine={"devices_per_node": 4})
    process = this_process(spec.machine, spec.processes_per_node)
    assert (process.rank, process.world_size) == (0, 1)
    assert launcher(spec, "worker")[:2] == [sys.executable, "-m"]
    assert "transformer_core.run.rendezvous" not in launcher(spec, "worker")
    shared = spec_of(parallel={"kind": "ddp"}, machine={"devices_per_node": 4})
    assert threads_per_process(spec) >= threads_per_process(shared)


@pytest.mark.parametrize("kind", ["ddp", "central", "fsdp"])
def test_other_strategies_have_one_process_per_device(kind):
    spec = spec_of(parallel={"kind": kind}, machine={"devices_per_node": 3})
    command = launcher(spec, "worker", fresh=True)
    assert "transformer_core.run.rendezvous" in command
    assert "--nproc-per-node=3" in command
    with pytest.raises(RuntimeError, match="started as 1 of 1 processes"):
        this_process(spec.machine, spec.processes_per_node)


@pytest.mark.parametrize(
    ("place", "places", "threads", "expected"),
    [
        (0, 1, 4, [8, 9, 12, 13]),
        (0, 1, 1, [13]),
        (0, 2, 2, [8, 9]),
        (1, 2, 2, [12, 13]),
        (0, 2, 1, [12]),
        (1, 2, 1, [13]),
    ],
)
def test_processes_share_the_last_cores(place, places, threads, expected):
    assert core_share([8, 9, 12, 13], place, places, threads) == expected


def test_processes_with_few_threads_keep_to_separate_cores(monkeypatch):
    """As sides of comparisons do: CPUs 0 and 1, and 2 and 3, are threads of one core."""
    bound: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(settling, "apart", lambda cpus: [0, 2, 1, 3])
    monkeypatch.setattr(settling, "bind", lambda threads, cores: bound.append(cores))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for place in (0, 1):
        bind_threads(place, 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    bind_threads(0, 2)
    assert bound[:3] == [[1], [3], [0, 1]]


PROGRAM = """
import os, threading, torch
torch.set_num_threads(2)
from transformer_core.machine.hardware import affinity
from transformer_core.parallel.settling import bind_threads

bind_threads(0, 1)
torch.ones(2**22).add_(1)
later = []
thread = threading.Thread(target=lambda: later.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
masks = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
print(sum(len(mask) == 1 for mask in masks), later, affinity(), sep="; ")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="nothing binds threads here")
def test_torchs_threads_have_a_core_each_and_later_ones_any_of_these(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[-2:]
    if len(cores) < 2:
        pytest.skip("needs 2 cores")
    bound, later, told = output_of(PROGRAM, tmp_path).strip().split("; ")
    assert (bound, later) == ("1", str([cores]))
    assert told.startswith("cores ")
    assert told.endswith(", 1 threads on one core each")


def test_few_cores_and_systems_that_cannot_bind_threads_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("bound"), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(Unsupported, match=r"2 processes of 2 threads .* 2 cores"):
        bind_threads(1, 2)
    monkeypatch.setattr(settling, "os", SimpleNamespace(sched_getaffinity=lambda _: {0, 1}))
    with pytest.raises(Unsupported, match="needs Linux"):
        bind_threads(0, 1)


@pytest.mark.parametrize(("affinity", "bound"), [("none", []), ("cores", [(3, 4)])])
def test_threads_are_bound_only_on_request(affinity, bound, monkeypatch):
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(settling, "bind_threads", lambda *places: seen.append(places))
    settle(CPU, Machine.model_validate({"affinity": affinity}), 3, 4)
    assert seen == bound


def test_torchs_own_segments_are_refused_on_a_cpu():
    machine = Machine(cuda_allocator="default")
    with pytest.raises(Unsupported, match=r"machine\.cuda_allocator: default .* on a CPU"):
        settle(CPU, machine, 0, 1)
    settle(CPU, Machine(), 0, 1)


def test_emulated_hosts_share_the_cores_of_this_machine():
    process = Process(rank=3, world_size=4, local_rank=1, local_world_size=2, device=CPU)
    assert process.among(Machine()) == (1, 2)
    assert process.among(Machine(nodes=2, link=Link(bandwidth="100Mbit/s"))) == (3, 4)


def test_fsdp_says_which_torch_it_needs(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.8.0+cpu")
    words = "needs torch 2.9 or newer; this is 2.8.0+cpu: use DDP"
    spec = spec_of(parallel={"kind": "fsdp"})
    with pytest.raises(Unsupported, match=re.escape(words)):
        FsdpStrategy(spec.parallel, Process(0, 2, 0, 2, CPU), spec.machine, False)
    assert words in TECHNIQUES["fsdp"].obstacle({"device": "cpu", "devices": 2})
    assert fsdp_fault("cuda") is None
