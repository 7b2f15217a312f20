"""PowerSGD resumes from a checkpoint as if it had never stopped, and draws its own random numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks
from tests.training.small_training import run_small, small_spec
from transformer_core.parallel import hooks

pytestmark = pytest.mark.slow

HOOK = {"kind": "powersgd", "rank": 1, "start_step": 2}
# Buckets of a few kilobytes: there are several, and DDP rebuilds them after the first step.
PARALLEL = {"kind": "ddp", "bucket_mb": 0.01, "hook": HOOK}
STOPS = (3, 4)
"""Steps after which a run stops. Compression starts in the third step."""


def ends(folder: Path) -> dict[int, dict[str, Any]]:
    """Final states by the step from which a run was resumed (0: never), and the numbers of buckets
    in the first step and in later ones."""
    training = {"steps": 6, "checkpoint_every": 1}
    spec = small_spec(parallel=PARALLEL, training=training, machine={"devices_per_node": 2})
    found = {}
    for stop_at in (0, *STOPS):
        path = folder / str(stop_at)
        if stop_at:
            run_small(spec, path, stop_at)
            torch.manual_seed(99 + dist.get_rank())
        watcher, setup = run_small(spec, path)
        found[stop_at] = {
            "weights": [p.detach().clone() for p in setup.model.parameters()],
            "errors": list((setup.strategy.held_back() or {}).values()),
            "losses": watcher.losses,
            "began": watcher.started_at,
            "buckets": [len(sizes) for sizes in setup.strategy._buckets()],
        }
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(ends, 2, tmp_path_factory.mktemp("ends"))


@pytest.mark.parametrize("stop_at", STOPS)
def test_a_resumed_run_is_the_whole_one_to_the_last_bit(ranks, stop_at):
    for rank in ranks:
        whole, resumed = rank[0], rank[stop_at]
        assert resumed["began"] == [stop_at]
        assert resumed["losses"] == whole["losses"]
        assert len(whole["errors"]) == len(resumed["errors"]) > 0
        for part in ("weights", "errors"):
            assert all(map(torch.equal, resumed[part], whole[part])), part


def test_there_are_several_buckets_and_errors(ranks):
    whole = ranks[0][0]
    first, rebuilt = whole["buckets"]
    assert rebuilt > first, "a resumed run begins with other buckets than it goes on with"
    assert any(error.abs().max() > 0 for error in whole["errors"])


def test_a_gpu_keeps_its_random_state(monkeypatch):
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
