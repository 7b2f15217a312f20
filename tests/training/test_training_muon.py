"""Muon trains matrices, AdamW the rest, in one optimizer with one state."""

import pytest
import torch
from torch import nn

from schemas.errors import Unsupported
from tests.training.small_training import Stopped, Watcher, small_setup, small_spec
from transformer_core.techniques.muon import Muon, is_map_of_tokens
from transformer_core.training.loop import train

MUON = {"optimizer": {"kind": "muon"}}
NEEDS_IT = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 or newer")


def groups() -> tuple[set[str], set[str]]:
    setup = small_setup(small_spec(training=MUON))
    names = {p: name for name, p in setup.module.named_parameters()}
    of_adam, of_muon = ({names[p] for p in g["params"]} for g in setup.optimizer.param_groups)
    return of_adam, of_muon


@NEEDS_IT
def test_every_parameter_is_trained_once_by_the_right_one():
    of_adam, of_muon = groups()
    assert not of_adam & of_muon
    assert all("embedding" in n or n.endswith((".bias", "norm.weight")) for n in of_adam)
    assert any("self_attention.output.weight" in name for name in of_muon)
    assert not any("embedding" in name for name in of_muon)


def test_the_output_map_has_a_row_for_every_token_and_an_attention_has_not():
    assert is_map_of_tokens("module.model.output.weight")
    assert not is_map_of_tokens("model.encoder.0.self_attention.output.weight")


@NEEDS_IT
def test_an_update_of_a_matrix_is_orthogonal():
    weight = nn.Parameter(torch.zeros(8, 8))
    optimizer = Muon(kind="muon").build([("layer.weight", weight)], torch.device("cpu"), False)
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    weight.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    values = torch.linalg.svdvals(weight.detach())
    # Newton-Schulz brings most singular values near 1, not to it; the gradient's are further apart.
    before = torch.linalg.svdvals(weight.grad)
    assert values.std() / values.mean() < 0.5 * before.std() / before.mean()


@NEEDS_IT
def test_it_resumes_as_if_it_had_never_stopped(tmp_path):
    spec = small_spec(training=MUON | {"checkpoint_every": 2})
    whole = Watcher()
    train(small_setup(spec), whole, tmp_path / "whole", validate_last=False)
    with pytest.raises(Stopped):
        train(small_setup(spec), Watcher(stop_at=3), tmp_path / "cut", validate_last=False)
    again = Watcher()
    train(small_setup(spec), again, tmp_path / "cut", validate_last=False)
    assert again.started_at == [2]
    assert {step: again.losses[step] for step in (3, 4, 5, 6)} == {
        step: whole.losses[step] for step in (3, 4, 5, 6)
    }


@NEEDS_IT
def test_shards_are_refused():
    weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(Unsupported, match="whole matrices"):
        Muon(kind="muon").build([("w", weight)], torch.device("cpu"), True)


def test_an_older_torch_is_unsupported(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(Unsupported, match=r"torch 2\.9"):
        Muon(kind="muon").build([], torch.device("cpu"), False)


def test_collections_wait_for_validations(tmp_path):
    import gc

    seen: list[bool] = []

    class Looker(Watcher):
        def step_done(self, *given: int) -> None:
            seen.append(gc.isenabled())
            super().step_done(*given)

    setup = small_setup(small_spec(machine={"garbage_collection": "off"}))
    train(setup, Looker(), tmp_path)
    assert seen
    assert not any(seen)
    assert gc.isenabled()
