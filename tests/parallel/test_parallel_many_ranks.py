"""Steps as one of four ranks, whose messages go nowhere: every strategy, without a host
for each rank. DDP's reducer, which needs answers, is imitated as for predictions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.training.small_training import small_setup, small_spec
from transformer_core.measure.memory_prediction import _strategy, predict_ranks
from transformer_core.models.device_kind import laid_out_for
from transformer_core.parallel.topology import Process
from transformer_core.training import assemble
from transformer_core.training.loop import optimizer_step

CPU = torch.device("cpu")
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "ddp_view": {"kind": "ddp", "bucket_view": True},
    "ddp_no_overlap": {"kind": "ddp", "overlap": False},
    "ddp_fp16": {"kind": "ddp", "hook": {"kind": "compress", "dtype": "fp16"}},
    "fsdp": {"kind": "fsdp"},
    "fsdp_kept": {"kind": "fsdp", "reshard_after_forward": False},
    "central": {"kind": "central"},
    "central_local": {"kind": "central", "local_loss": True},
}


@contextmanager
def one_of(world_size: int, rank: int) -> Iterator[Process]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield Process(rank, world_size, rank, world_size, CPU)
    finally:
        dist.destroy_process_group()


def spec_of(name: str, world_size: int) -> Any:
    machine = {"device": "cpu", "devices_per_node": world_size}
    return small_spec(parallel=STRATEGIES[name], machine=machine)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_of_rank_0_and_of_the_last(name, monkeypatch):
    world_size = 4
    spec = spec_of(name, world_size)
    monkeypatch.setattr(
        assemble, "build_strategy", lambda _, process, *rest: _strategy(spec, process)
    )
    for rank in (0, world_size - 1):
        with one_of(world_size, rank) as process, laid_out_for("cuda"):
            setup = small_setup(spec, process)
            setup.module.train()
            batches = setup.strategy.batches(setup.feed, 0, 0)
            batch = next(batches)
            # The message that would tell the other ranks how many tokens there are goes nowhere.
            assert batch.target_tokens or rank
            if batch.target_tokens:
                loss, norm = optimizer_step(setup, batch, 1e-3)
                assert loss.shape == norm.shape == ()
            batches.close()
            share = 8 if STRATEGIES[name]["kind"] == "central" else 8 // world_size
            assert rank or batch.micro_batches[0].pairs == share


@pytest.mark.parametrize("name", ["ddp", "fsdp", "central"])
def test_memory_by_the_number_of_ranks(name):
    ranks, parameters = predict_ranks(spec_of(name, 4), 61, CPU)
    share = ranks[0].anatomy.weights_bytes / (4 * parameters)
    if name == "fsdp":
        assert 1 / 4 <= share < 1.6 / 4
    else:
        assert share == 1
