"""Cores of their own for processes and threads."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from schemas.config.parallel import Link, Machine
from schemas.errors import Unsupported
from transformer_core.parallel import settling
from transformer_core.parallel.settling import bind_threads, core_share, settle
from transformer_core.parallel.topology import Process

CPU = torch.device("cpu")


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
def test_torchs_threads_have_a_core_each_and_later_ones_any_of_these():
    cores = sorted(os.sched_getaffinity(0))[-2:]
    if len(cores) < 2:
        pytest.skip("needs 2 cores")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    bound, later, told = done.stdout.strip().split("; ")
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
