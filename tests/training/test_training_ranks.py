"""Two ranks resume to the last bit, skip the same steps and divide the optimizer's state."""

import math
from typing import Any

import pytest
import torch

from tests.distributed import run_ranks
from tests.training.small_training import run_small, small_setup, small_spec
from tests.training.test_training_checkpoint import everything
from transformer_core.training import checkpoint

pytestmark = pytest.mark.slow
TRAININGS = {
    "adamw": {"optimizer": {"kind": "adamw"}},
    "adamw_zero": {"optimizer": {"kind": "adamw_zero"}, "checkpoint_writing": "behind"},
    "apart": {"optimizer": {"kind": "adamw"}},
    "fsdp": {},
    "powersgd": {},
}
PARALLEL: dict[str, dict[str, Any]] = {
    # The ranks hold different weights when the checkpoint of step 3 is written.
    "apart": {"kind": "local_steps", "every": 2},
    "fsdp": {"kind": "fsdp"},
    # Compresses from the third step, in small buckets, which DDP rebuilds after the first one.
    "powersgd": {
        "kind": "ddp",
        "bucket_mb": 0.01,
        "hook": {"kind": "powersgd", "rank": 1, "start_step": 2},
    },
}
TWO = {"devices_per_node": 2}


def trained(kind, checkpoints, stop_at=0):
    """The step at which a training began, and its final state."""
    training = TRAININGS[kind] | {"checkpoint_every": 3, "validate_every": 4}
    spec = small_spec(parallel=PARALLEL.get(kind, {"kind": "ddp"}), machine=TWO, training=training)
    watcher, end = run_small(spec, checkpoints, stop_at)
    held_back = [error.flatten().tolist() for error in (end.strategy.held_back() or {}).values()]
    return watcher.started_at, everything(end) | {"held back": held_back}


def overflow_in_one_rank(strategy):
    """Norms, report and weights of three fp16 steps; only rank 1 overflows, in the second."""
    spec = small_spec(
        parallel={"kind": strategy},
        machine=TWO,
        training={"precision": {"kind": "fp16", "initial_scale": 256.0}},
    )
    setup = small_setup(spec)
    batches = setup.feed.batches()
    norms = []
    for step in range(1, 4):
        micro = next(batches).micro_batches[0]
        factor = 1e9 if (step, setup.process.rank) == (2, 1) else 1e-2
        setup.optimizer.param_groups[0]["lr"] = 1e-3
        setup.optimizer.zero_grad()
        with setup.precision.autocast():
            loss = setup.module(micro.source, micro.target_input, micro.target_output)
        setup.precision.backward(loss * factor)
        parameters = setup.module.parameters()
        norms.append(float(setup.precision.step(setup.optimizer, parameters, 1.0)))
    weights = [
        getattr(p, "full_tensor", lambda p=p: p)().detach() for p in setup.model.parameters()
    ]
    finite = all(bool(weight.isfinite().all()) for weight in weights)
    return norms, setup.precision.report(), sum(float(w.double().sum()) for w in weights), finite


def skipped_of_a_rank(folder):
    """The skipped fp16 steps of a rank that trains apart, after a checkpoint: as many as its number."""
    training = {"precision": {"kind": "fp16"}}
    spec = small_spec(parallel=PARALLEL["apart"], machine=TWO, training=training)
    setup = small_setup(spec)
    own = setup.precision.state()
    setup.precision.load(own | {"skipped_steps": setup.process.rank})
    checkpoint.save(folder, setup, 1, {})
    setup.strategy.synchronise()  # until the main rank has renamed it
    setup.precision.load(own | {"skipped_steps": 9})
    checkpoint.load(checkpoint.latest(folder, setup), setup)
    return setup.precision.state()["skipped_steps"]


def trainings(folder):
    found = {}
    for kind in TRAININGS:
        whole = trained(kind, folder / kind / "whole")
        trained(kind, folder / kind / "parts", stop_at=4)
        torch.manual_seed(99)
        found[kind] = whole, trained(kind, folder / kind / "parts")
    found |= {f"{kind} in fp16": overflow_in_one_rank(kind) for kind in ("ddp", "fsdp")}
    return found | {"skipped": skipped_of_a_rank(folder / "skipped")}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The trainings of each rank; processes start once for all of them."""
    return run_ranks(trainings, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(ranks, kind):
    for rank in ranks:
        (begun, whole), (begun_again, resumed) = rank[kind]
        assert (begun, begun_again) == ([0], [3])
        assert resumed == whole
        assert any(map(any, whole["held back"])) == (kind == "powersgd")


def test_ranks_that_train_apart_keep_their_own_loss_scales(ranks):
    assert [rank["skipped"] for rank in ranks] == [0, 1]


def test_a_divided_state_is_that_of_adamw(ranks):
    moments = []
    for rank in ranks:
        (_, plain), (_, divided) = (rank[kind][0] for kind in ("adamw", "adamw_zero"))
        for name in plain.keys() & divided.keys() - {"random", "precision", "held back"}:
            torch.testing.assert_close(torch.tensor(divided[name]), torch.tensor(plain[name]))
        moments.append({name for name in divided if name.endswith("/exp_avg")})
    assert all(moments)
    assert not moments[0] & moments[1]
    assert moments[0] | moments[1] == {name for name in plain if name.endswith("/exp_avg")}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_skip_the_same_fp16_steps(ranks, strategy):
    results = [rank[f"{strategy} in fp16"] for rank in ranks]
    for norms, report, _, finite in results:
        assert [math.isfinite(norm) for norm in norms] == [True, False, True]
        assert report == {"skipped_steps": 1, "loss_scale": 128.0}
        assert finite
    assert repr(results[0]) == repr(results[1])
