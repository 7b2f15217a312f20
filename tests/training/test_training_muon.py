"""Muon trains matrices, AdamW the rest, in one optimizer with one state."""

import pytest
import torch
from torch import nn

from schemas.errors import Unsupported
from tests.training.small_training import small_setup, small_spec
from transformer_core.techniques.muon import Muon, is_map_of_tokens

NEEDS_IT = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 or newer")


@NEEDS_IT
def test_every_parameter_is_trained_once_by_the_right_one():
    setup = small_setup(small_spec(training={"optimizer": {"kind": "muon"}}))
    names = {p: name for name, p in setup.module.named_parameters()}
    of_adam, of_muon = ({names[p] for p in g["params"]} for g in setup.optimizer.param_groups)
    assert not of_adam & of_muon
    assert all("embedding" in n or n.endswith((".bias", "norm.weight")) for n in of_adam)
    assert any("self_attention.output.weight" in name for name in of_muon)
    assert not any("embedding" in name for name in of_muon)


def test_the_output_map_has_a_row_for_every_token_but_attention_does_not():
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
    # Newton-Schulz brings most singular values only near 1; the gradient's are further apart.
    before = torch.linalg.svdvals(weight.grad)
    assert values.std() / values.mean() < 0.5 * before.std() / before.mean()


def test_shards_and_an_older_torch_are_unsupported(monkeypatch):
    weight = nn.Parameter(torch.zeros(2, 2))
    monkeypatch.setattr(torch.optim, "Muon", object(), raising=False)
    with pytest.raises(Unsupported, match="whole matrices"):
        Muon(kind="muon").build([("w", weight)], torch.device("cpu"), True)
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(Unsupported, match=r"torch 2\.9"):
        Muon(kind="muon").build([], torch.device("cpu"), False)
