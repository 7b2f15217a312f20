"""Optimizers that are techniques: compiled, divided among ranks, schedule-free, Muon."""

import importlib
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from schemas.errors import Unsupported
from tests.training.small_training import small_setup, small_spec
from transformer_core.techniques.compiled_adamw import CompiledAdamW
from transformer_core.techniques.muon import Muon, is_map_of_tokens
from transformer_core.techniques.schedule_free import ScheduleFreeAdamW
from transformer_core.techniques.zero_redundancy import ZeroRedundancy

CPU = torch.device("cpu")


def weights(steps, build):
    """The weights of a small model after some steps, each with another rate, and the optimizer."""
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


def test_schedule_free_adamw_keeps_an_average_of_its_weights():
    pytest.importorskip("schedulefree")
    spec = ScheduleFreeAdamW(kind="adamw_schedule_free")
    last, optimizer = weights(5, lambda named: spec.build(named, CPU, False))
    before = [tensor.clone() for tensor in last]
    optimizer.eval()
    z = [optimizer.state[p]["z"] for p in optimizer.param_groups[0]["params"]]
    one = spec.betas[0]
    # Gradients are taken at weights between the average and the last ones.
    for trained_now, average, end in zip(before, last, z, strict=True):
        torch.testing.assert_close(trained_now, one * average + (1 - one) * end)


@pytest.mark.parametrize(
    ("spec", "sharded", "words"),
    [
        (ZeroRedundancy(kind="adamw_zero"), False, "no other rank"),
        (ZeroRedundancy(kind="adamw_zero"), True, "FSDP has already divided"),
        (Muon(kind="muon"), True, "whole matrices"),
        (ScheduleFreeAdamW(kind="adamw_schedule_free"), False, "pip install schedulefree"),
    ],
)
def test_optimizers_that_cannot_work_say_why(monkeypatch, spec, sharded, words):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match=words):
        spec.build([], CPU, sharded)


@pytest.mark.parametrize(("how", "factor"), [("none", 1), ("square_root", 2), ("linear", 4)])
def test_the_rate_follows_the_batch(how, factor):
    sections = {"batching": {"scale": 4.0}, "training": {"rate_follows_batch": how}}
    spec, plain = small_spec(**sections), small_spec()
    for name in ("factor", "peak"):
        if hasattr(plain.schedule, name):
            assert getattr(spec.schedule, name) == factor * getattr(plain.schedule, name)
    assert spec.training.schedule == plain.training.schedule


def test_muon_trains_matrices_and_adamw_the_rest():
    setup = small_setup(small_spec(training={"optimizer": {"kind": "muon"}}))
    names = {p: name for name, p in setup.module.named_parameters()}
    of_adam, of_muon = ({names[p] for p in g["params"]} for g in setup.optimizer.param_groups)
    assert not of_adam & of_muon
    assert all("embedding" in n or n.endswith((".bias", "norm.weight")) for n in of_adam)
    assert any("self_attention.output.weight" in name for name in of_muon)
    assert not any("embedding" in name for name in of_muon)


def test_the_matrices_with_a_row_for_every_token():
    maps = ["module.model.output", "model.places", "model.marian.model.shared"]
    maps += [f"model.causal.{name}" for name in ("transformer.wte", "transformer.wpe", "lm_head")]
    maps += ["model.causal.model.embed_tokens"]
    others = ["model.encoder.0.self_attention.output"]
    others += ["model.causal.transformer.h.0.mlp.shared_expert"]
    found = {name for name in maps + others if is_map_of_tokens(f"{name}.weight")}
    assert found == set(maps)


def test_an_update_of_a_matrix_by_muon_is_orthogonal():
    weight = nn.Parameter(torch.zeros(8, 8))
    optimizer = Muon(kind="muon").build([("layer.weight", weight)], CPU, False)
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    weight.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    values = torch.linalg.svdvals(weight.detach())
    # Newton-Schulz brings most singular values only near 1; the gradient's are further apart.
    before = torch.linalg.svdvals(weight.grad)
    assert values.std() / values.mean() < 0.5 * before.std() / before.mean()
