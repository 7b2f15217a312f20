"""The rank of a process, the number of processes, and their start."""

import sys

import pytest

from schemas.config.parallel import Machine
from tests.parallel.gradient_cases import spec_of
from transformer_core.parallel.topology import this_process
from transformer_core.run.launcher import launcher, threads_per_process

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
