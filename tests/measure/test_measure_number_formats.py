"""What emulated formats round, and when products of 32 bits can be trusted."""

import pytest
import torch

from schemas.config.model import DecoderOnly
from schemas.config.parallel import Fsdp
from tests.training.small_training import small_spec
from transformer_core.certify.number_formats import (
    SINGLE,
    adds_in_32_bits,
    format_of,
    single_is_independent,
    to_bf16,
)
from transformer_core.certify.plain_models import PlainDecoder
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

FSDP = {"parallel": {"kind": "fsdp", "bf16": True}}
WEIGHTS = {"training": {"precision": {"kind": "bf16_weights"}}}
AUTOCAST = {"training": {"precision": {"kind": "bf16"}}}


SPEC = DecoderOnly.model_validate({"layers": 1, "d_model": 16, "heads": 2, "d_ff": 20})


def gradients(weights, form):
    tokens = torch.tensor([[1, 7, 9, 4]])
    labels = torch.tensor([[7, 9, 4, 5]])
    plain = PlainDecoder(SPEC, 0.0, masked=False)
    return plain.loss_and_gradients(weights, [(tokens[:, :0], tokens, labels)], form)[1]


def some_weights():
    torch.manual_seed(1)
    model = build_model(SPEC, 30)
    return {key: w + 0.01 * torch.randn_like(w) for key, w in canonical_state_dict(model).items()}


@pytest.mark.parametrize("change", [FSDP, WEIGHTS], ids=["fsdp", "weights"])
def test_weights_of_normalizations_are_rounded_where_the_technique_rounds_them(change):
    form = format_of(small_spec(**change))
    weights = some_weights()
    rounded = {key: to_bf16(w) for key, w in weights.items()}
    found, expected = gradients(weights, form), gradients(rounded, form)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert all(torch.equal(found[key], to_bf16(found[key])) for key in found)


def test_autocast_leaves_weights_of_normalizations_as_they_are():
    form = format_of(small_spec(**AUTOCAST))
    weights = some_weights()
    moved = weights | {"norm.weight": to_bf16(weights["norm.weight"])}
    found, other = gradients(weights, form), gradients(moved, form)
    assert any(not torch.equal(found[key], other[key]) for key in found)


def test_fsdp_in_32_bits_rounds_nothing():
    assert isinstance(small_spec(parallel={"kind": "fsdp"}).parallel, Fsdp)
    assert format_of(small_spec(parallel={"kind": "fsdp"})) is SINGLE


def test_products_of_fewer_bits_are_noticed(monkeypatch):
    assert adds_in_32_bits()
    whole = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: whole(to_bf16(a), to_bf16(b)))
    assert not adds_in_32_bits()


def test_gradients_belong_to_the_weights_that_a_step_computes_with():
    kept = some_weights()
    form = format_of(small_spec(**WEIGHTS))
    used = form.weights_used(kept)
    assert all(torch.equal(used[key], to_bf16(kept[key])) for key in kept)
    assert format_of(small_spec(**AUTOCAST)).weights_used(kept) is kept
    assert SINGLE.weights_used(kept) is kept


def test_products_that_a_run_replaces_are_not_its_judge():
    assert single_is_independent(small_spec(**AUTOCAST))
    assert not single_is_independent(small_spec(training={"precision": {"kind": "fp32_onednn"}}))
