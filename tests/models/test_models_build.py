"""Every kind that the schemas know can be built."""

from typing import get_args

import pytest
import torch

from schemas.config.model import AnyAttention, AnyLanguageModel, AnyModel, AnyQkv, Transformer
from transformer_core.models.attention import ATTENTIONS
from transformer_core.models.qkv_projection import PROJECTIONS
from transformer_core.models.registry import BUILDERS, build_model


def kinds(schema):
    """The ``kind`` of a schema, or of each member of a discriminated union."""
    members = get_args(get_args(schema)[0]) if get_args(schema) else (schema,)
    return {get_args(m.model_fields["kind"].annotation)[0] for m in members}


def test_registries_hold_what_the_schemas_know():
    assert set(BUILDERS) == kinds(AnyModel) | kinds(AnyLanguageModel)
    assert set(ATTENTIONS) == kinds(AnyAttention)
    assert set(PROJECTIONS) == kinds(AnyQkv)


@pytest.mark.parametrize("attention", sorted(ATTENTIONS))
@pytest.mark.parametrize(
    "qkv",
    [
        {"kind": "separate"},
        {"kind": "fused"},
        {"kind": "layout", "outermost": "batch"},
        {"kind": "layout", "outermost": "qkv"},
    ],
    ids=lambda qkv: "-".join(qkv.values()),
)
def test_every_combination_computes_the_same(attention, qkv):
    def logits(attention, qkv):
        torch.manual_seed(3)
        spec = Transformer(d_model=16, d_ff=32, heads=4, attention={"kind": attention}, qkv=qkv)
        model = build_model(spec, 20).eval()
        source = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0]])
        target = torch.tensor([[1, 10, 11], [1, 12, 0]])
        return model(source, target)[source[:, :3] != 0]

    expected = logits("reference", {"kind": "separate"})
    torch.testing.assert_close(logits(attention, qkv), expected, rtol=1e-5, atol=1e-5)
