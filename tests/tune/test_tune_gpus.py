"""A script that trains on a GPU which is not torch's current device, as rank 1 may, on imitated GPUs."""

import json
from types import SimpleNamespace

import pytest
import torch

from tests.tune.test_tune_flow import FACTS, PROGRAM
from transformer_core.parallel import nvml
from transformer_core.tune import factory, side
from transformer_core.tune.answer import Answer
from transformer_core.tune.boundaries import Boundaries
from transformer_core.tune.facts import Memory
from transformer_core.tune.flow import CONTEXT, Tuning
from transformer_core.tune.records import signs, sketch

GIB = 2**30


@pytest.fixture
def second_of_three(monkeypatch):
    """The calls that concern a GPU, by its index."""
    calls = []
    cuda = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 3,
        "current_device": lambda: 0,
        "max_memory_allocated": lambda index=0: 4 * GIB if index == 1 else 0,
        "mem_get_info": lambda index=0: (1, 80 * GIB if index == 1 else 8 * GIB),
        "synchronize": lambda index=0: calls.append(("synchronize", index)),
        "reset_peak_memory_stats": lambda index=0: calls.append(("reset", index)),
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    worked = "_cuda_hasPrimaryContext"  # also if torch caches no memory, and so counts none
    monkeypatch.setattr(torch._C, worked, lambda index: index == 1, raising=False)
    return calls


def test_the_clock_waits_for_the_gpu_in_use_and_memory_is_that_gpus(second_of_three):
    side.synchronise()
    memory = Memory(Boundaries())
    memory.reset()
    assert second_of_three == [("synchronize", 1), ("reset", 1)]
    parts = memory.parts()
    assert (parts["peak"], parts["room"], parts["libraries"]) == (4 * GIB, 80 * GIB, 0)


def test_sketches_leave_nothing_on_the_gpu_whose_memory_is_measured(monkeypatch):
    sketch(torch.ones(300, 300))
    left: list[int] = []
    memory = SimpleNamespace(reset=lambda: left.append(signs.cache_info().currsize))
    turn = {"steps": 1, "record": False, "profile": False}
    line = SimpleNamespace(recv_bytes=lambda: json.dumps({"kind": "Train", "task": turn}).encode())
    monkeypatch.setattr(side, "signal_children", lambda *numbers: None)
    side.Side._wait(SimpleNamespace(line=line, memory=memory, recording=True))
    assert left == [0]


def test_a_training_on_the_cpu_that_only_asks_a_gpu_has_the_memory_of_the_host(
    second_of_three, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda index: 0)
    parts = Memory(Boundaries()).parts()
    assert min(parts["peak"], parts["libraries"]) > 2**20
    assert parts["room"] != 80 * GIB


def test_ranks_of_a_factory_need_as_many_gpus_and_one_alone_ignores_its_cluster(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="not supported: needs 2 CUDA devices, this host has 1"):
        factory.train({"factory": "a:b", "device": "auto", "over": "ddp"})
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail(f"takes {device}"))
    with pytest.raises(pytest.fail.Exception, match="takes cuda:0"):
        factory.train({"factory": "a:b", "device": "auto"})


def test_sides_fit_with_their_contexts_into_the_gpu_of_the_script(tmp_path, monkeypatch):
    gpu = {"device": "cuda", "gpu": "b2", "memory": {"peak": 2**20}}
    monkeypatch.setattr(nvml, "memory_by_uuid", lambda kind: {"a1": 80 * GIB, "b2": 10 * CONTEXT})
    nothing = SimpleNamespace(mem_get_info=lambda: pytest.fail("takes memory of the GPU"))
    monkeypatch.setattr(torch, "cuda", nothing)
    answer = Answer("train.py", facts=FACTS | gpu)
    assert Tuning(PROGRAM, tmp_path, print)._most_sides(answer) == 3
