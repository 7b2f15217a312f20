"""DistributedDataParallel and its hooks report the traffic that really occurs."""

import sys
from collections import Counter
from datetime import timedelta
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile

from schemas.config.parallel import Ddp, RingHook
from tests.distributed import run_ranks
from tests.parallel.gradient_cases import spec_of
from tests.training.small_training import small_setup
from transformer_core.parallel import hooks
from transformer_core.parallel.messages import Traffic
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.topology import Process
from transformer_core.training.loop import optimizer_step

pytestmark = pytest.mark.slow

STEPS = 3
MICRO_BATCHES = 2
SMALL = {"kind": "ddp", "bucket_mb": 0.01}
"""Buckets of a few kilobytes: there are several, and DDP rebuilds them after the first step."""
POWER_SGD = SMALL | {"hook": {"kind": "powersgd", "rank": 1, "start_step": 2}}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "default": (SMALL, "last"),
    "every": (SMALL, "every"),
    "one_bucket": ({"kind": "ddp"}, "last"),
    "no_overlap": (SMALL | {"overlap": False}, "last"),
    "no_overlap_every": (SMALL | {"overlap": False}, "every"),
    "ring": (SMALL | {"hook": {"kind": "ring"}}, "last"),
    "fp16": (SMALL | {"hook": {"kind": "compress", "dtype": "fp16"}}, "last"),
    "powersgd": (POWER_SGD, "every"),
}


def observe(parallel: dict[str, Any], synchronise: str) -> dict[str, Any]:
    """The collectives seen in three steps, and those that the strategy reported."""
    accumulation = {"micro_batches": MICRO_BATCHES, "synchronise": synchronise}
    setup = small_setup(spec_of(parallel=parallel, training={"accumulation": accumulation}))
    batches = list(islice(setup.strategy.batches(setup.feed, 0, 0), STEPS))
    # All ranks finish the profiler's warm-up before any starts a collective.
    dist.barrier()
    # The profiler sees what DDP starts, even in C++; the mocks see what hooks start on threads.
    with (
        profile(activities=[ProfilerActivity.CPU]) as profiler,
        patch.object(dist, "all_reduce", wraps=dist.all_reduce) as called,
        patch.object(dist, "batch_isend_irecv", wraps=dist.batch_isend_irecv) as exchanged,
    ):
        for batch in batches:
            optimizer_step(setup, batch, 1e-3)
    # The raw events: torch would take seconds to make a tree of them.
    names = Counter(event.name() for event in profiler.profiler.kineto_results.events())
    return {
        "all_reduces": max(names["c10d::allreduce_"], called.call_count),
        "exchanges": exchanged.call_count,
        "buckets": [len(sizes) for sizes in setup.strategy._buckets()],
        "elements": sum(p.numel() for p in setup.model.parameters()),
        "told": setup.strategy.communication(),
        "difference": setup.strategy.replica_difference(),
    }


def drifted(changes: list[float]) -> list[float | None]:
    """Largest difference between replicas at first, and after each change of a weight of rank 1."""
    setup = small_setup(spec_of(parallel={"kind": "ddp"}))
    found = [setup.strategy.replica_difference()]
    for change in changes:
        if dist.get_rank() == 1:
            with torch.no_grad():
                next(setup.model.parameters()).view(-1)[3] += change
        found.append(setup.strategy.replica_difference())
    return found


def work_of_a_rank() -> dict[str, Any]:
    """Observations by case, and the numbers for the other tests."""
    found: dict[str, Any] = {name: observe(*case) for name, case in CASES.items()}
    return found | {
        "drifted": drifted([0.25, float("nan")]),
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(work_of_a_rank, 2)


@pytest.mark.parametrize("name", CASES)
def test_all_reduces_and_exchanges_are_counted(ranks, name):
    for rank in ranks:
        case, told = rank[name], rank[name]["told"]
        if name == "ring":
            assert case["all_reduces"] == 0
            # A ring of two ranks takes two steps for each bucket.
            assert case["exchanges"] == told["traffic"]["ring_step"]["calls"]
            assert case["exchanges"] == 2 * told["all_reduces"] > 0
        else:
            assert case["all_reduces"] == told["traffic"]["all_reduce"]["calls"] > 0
        assert case["difference"] == 0.0


def test_buckets_hold_the_gradients(ranks):
    for name in ("default", "no_overlap", "one_bucket"):
        case = ranks[0][name]
        sizes = case["told"]["bucket_bytes"]
        assert sum(sizes) == 4 * case["elements"]
        assert (len(sizes) == 1) == (name == "one_bucket")
    first, rebuilt = ranks[0]["powersgd"]["buckets"]
    assert rebuilt > first, "a resumed run begins with other buckets than it goes on with"


def test_reductions_follow_the_accumulation(ranks):
    every = STEPS * MICRO_BATCHES
    assert ranks[0]["default"]["told"]["micro_batches"] == every
    for name in ("default", "every", "no_overlap", "no_overlap_every"):
        reductions = every if CASES[name][1] == "every" else STEPS
        assert ranks[0][name]["told"]["synchronised_micro_batches"] == reductions


def test_bytes_of_the_hooks(ranks):
    # Each of two ranks sends its gradients once: 2 (p - 1) / p = 1.
    told = {name: ranks[0][name]["told"]["traffic"] for name in CASES}
    whole = 4 * ranks[0]["default"]["elements"]
    assert told["default"]["all_reduce"]["sent_bytes"] == [STEPS * whole] * 2
    assert told["fp16"]["all_reduce"]["sent_bytes"] == [STEPS * whole // 2] * 2
    assert sum(told["ring"]["ring_step"]["sent_bytes"]) == 2 * STEPS * whole
    # Two steps make four plain reductions; the third makes two compressed ones.
    (sent, _) = told["powersgd"]["all_reduce"]["sent_bytes"]
    assert 4 * whole < sent < 4.8 * whole


def test_a_drifted_replica_is_detected(ranks):
    for rank in ranks:
        assert rank["drifted"] == [0.0, pytest.approx(0.25), float("inf")]


def test_powersgd_keeps_the_random_state_of_a_gpu(monkeypatch):
    """torch seeds every GPU when it draws the first factors."""
    state = {"cuda:1": torch.tensor([5])}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state[str(device)])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda value, device: state.update({str(device): value})
    )
    before = torch.get_rng_state()
    with hooks._own_random_numbers(torch.device("cuda", 1)):
        state["cuda:1"] = torch.tensor([0])
    assert state["cuda:1"] == 5
    assert torch.equal(torch.get_rng_state(), before)


def test_a_hook_needs_overlap():
    with pytest.raises(ValueError, match="overlap is false"):
        Ddp.model_validate({"kind": "ddp", "overlap": False, "hook": {"kind": "ring"}})


def test_the_group_of_a_ring_waits_as_long_as_that_of_the_run(monkeypatch):
    """torch's default is 10 minutes with NCCL and 30 with gloo, whatever machine.timeout is."""
    asked = []
    monkeypatch.setattr(dist, "new_group", lambda timeout: asked.append(timeout))
    allowed = timedelta(seconds=3_600)
    ring = hooks.build_hook(RingHook(kind="ring"), Traffic(), torch.device("cpu"), 1, allowed)
    ring.close()
    assert asked == [allowed]


def wrap_train_and_free() -> None:
    torch.set_num_threads(1)
    sys.setswitchinterval(100)  # no thread gets the GIL before this one lets go of it
    spec = spec_of(parallel={"kind": "ddp"})
    for _ in range(150):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        process = Process(0, 1, 0, 1, torch.device("cpu"))
        strategy = build_strategy(spec.parallel, process, spec.machine, spec.training.accumulation)
        module = strategy.wrap(torch.nn.Linear(4, 1))
        module(torch.ones(2, 4)).sum().backward()
        dist.destroy_process_group()
        del strategy, module


def test_a_model_that_outlives_its_process_group_is_freed():
    """It hung if the reducer freed the group before a thread of gloo had freed its last work."""
    process = mp.get_context("forkserver").Process(target=wrap_train_and_free)
    process.start()
    process.join(300)
    ended = process.exitcode
    process.kill()
    process.join()
    assert ended == 0
