"""Optimizers that stand in a file of their own: compiled, divided among ranks, schedule-free."""

import importlib
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from schemas.errors import Unsupported
from tests.distributed import run_ranks
from tests.training.small_training import small_setup, small_spec
from transformer_core.techniques.compiled_adamw import CompiledAdamW
from transformer_core.techniques.schedule_free import ScheduleFreeAdamW
from transformer_core.techniques.zero_redundancy import ZeroRedundancy
from transformer_core.training import checkpoint
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer

CPU = torch.device("cpu")


def weights(steps, build):
    """A small model after some steps of an optimizer, whose rate changes at every step."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    optimizer = build(list(model.named_parameters()))
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * step
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(2, 6)).square().sum().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()], optimizer


def test_the_compiled_step_is_that_of_adamw_and_compiled_once(monkeypatch):
    monkeypatch.setattr(CompiledAdamW, "backend", "aot_eager")
    spec = CompiledAdamW(kind="adamw_compiled", weight_decay=0.1)
    torch._dynamo.reset()
    calls = []
    found, optimizer = weights(4, lambda named: spec.build(named, CPU, False))
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    settings = {"lr": 0.0, "betas": spec.betas, "eps": spec.eps, "weight_decay": 0.1}
    plain, _ = weights(4, lambda named: torch.optim.AdamW([p for _, p in named], **settings))
    torch.testing.assert_close(found, plain)
    frames = torch._dynamo.utils.counters["frames"]
    optimizer.step()
    assert torch._dynamo.utils.counters["frames"] == frames
    assert calls == [1]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.04)


def trained(kind, folder, steps, resume):
    """Weights and state of a training by DDP, perhaps stopped in between and resumed."""
    changes = {"steps": 6, "checkpoint_every": 3, "validate_every": 4, "optimizer": {"kind": kind}}
    changes["checkpoint_writing"] = "behind"
    parallel = {"kind": "ddp"} if resume == "ranks" else {"kind": "single"}
    spec = small_spec(parallel=parallel, training=changes)
    setup = small_setup(spec)
    if steps < 6:
        saved = checkpoint.save

        def stop(*arguments):
            saved(*arguments)
            raise KeyboardInterrupt

        checkpoint.save = stop
    try:
        train(setup, Observer(), Path(folder))
    except KeyboardInterrupt:
        checkpoint.save = saved
    state = [len(entry) for entry in setup.optimizer.state.values() if entry]
    return [p.detach().clone() for p in setup.model.parameters()], len(state)


def on_ranks(kinds, folder):
    found = {kind: trained(kind, f"{folder}/{kind}", 6, "ranks") for kind in kinds}
    trained("adamw_zero", f"{folder}/stopped", 3, "ranks")
    return found | {"resumed": trained("adamw_zero", f"{folder}/stopped", 6, "ranks")}


@pytest.mark.slow
def test_a_divided_state_gives_the_same_weights_and_resumes(tmp_path):
    ranks = run_ranks(on_ranks, 2, ["adamw", "adamw_zero"], str(tmp_path))
    counts = [rank["adamw_zero"][1] for rank in ranks]
    assert sum(counts) == ranks[0]["adamw"][1]
    assert all(counts)
    for rank in ranks:
        torch.testing.assert_close(rank["adamw_zero"][0], rank["adamw"][0])
        for mine, resumed in zip(rank["adamw_zero"][0], rank["resumed"][0], strict=True):
            assert torch.equal(mine, resumed)


def test_there_must_be_ranks_to_divide_it_among():
    with pytest.raises(Unsupported, match="no other rank"):
        ZeroRedundancy(kind="adamw_zero").build([], CPU, False)
    with pytest.raises(Unsupported, match="FSDP has divided"):
        ZeroRedundancy(kind="adamw_zero").build([], CPU, True)


def test_schedule_free_validates_the_average_and_resumes(tmp_path):
    pytest.importorskip("schedulefree")
    whole, _ = trained("adamw_schedule_free", tmp_path / "whole", 6, "")
    trained("adamw_schedule_free", tmp_path / "parts", 3, "")
    resumed, _ = trained("adamw_schedule_free", tmp_path / "parts", 6, "")
    for mine, other in zip(whole, resumed, strict=True):
        assert torch.equal(mine, other)
    spec = ScheduleFreeAdamW(kind="adamw_schedule_free")
    last, optimizer = weights(5, lambda named: spec.build(named, CPU, False))
    before = [tensor.clone() for tensor in last]
    optimizer.eval()
    z = [optimizer.state[p]["z"] for p in optimizer.param_groups[0]["params"]]
    one = spec.betas[0]
    # What is trained lies between the average and the last weights.
    for trained_now, average, end in zip(before, last, z, strict=True):
        torch.testing.assert_close(trained_now, one * average + (1 - one) * end)


def test_without_the_library_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match="pip install schedulefree"):
        ScheduleFreeAdamW(kind="adamw_schedule_free").build([], CPU, False)


@pytest.mark.parametrize(("how", "factor"), [("none", 1), ("square_root", 2), ("linear", 4)])
def test_the_rate_follows_the_batch(how, factor):
    sections = {"batching": {"scale": 4.0}, "training": {"rate_follows_batch": how}}
    spec, plain = small_spec(**sections), small_spec()
    for name in ("factor", "peak"):
        if hasattr(plain.schedule, name):
            assert getattr(spec.schedule, name) == factor * getattr(plain.schedule, name)
    assert spec.training.schedule == plain.training.schedule
