"""Properties of the encoder-decoder; test_models_kinds.py compares it with torch's own."""

import math
from typing import get_args

import pytest
import torch
from torch import nn

from schemas.config.model import AnyAttention, AnyLanguageModel, AnyModel, AnyQkv, Transformer
from transformer_core.models.attention import ATTENTIONS
from transformer_core.models.positions import Positions, sinusoidal_positions
from transformer_core.models.qkv_projection import PROJECTIONS, Projection
from transformer_core.models.registry import BUILDERS, build_model

V = 20
SOURCE = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 0, 0], [12, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 13, 14, 15], [1, 16, 17, 0], [1, 18, 0, 0]])


def build(seed=0, **changes):
    torch.manual_seed(seed)
    spec = {"d_model": 16, "d_ff": 32, "heads": 4, "dropout": 0.0} | changes
    return build_model(Transformer.model_validate(spec), V)


def kinds(schema):
    """The ``kind`` of each member of a discriminated union."""
    members = get_args(get_args(schema)[0])
    return {get_args(m.model_fields["kind"].annotation)[0] for m in members}


def test_registries_hold_what_the_schemas_know():
    assert set(BUILDERS) == kinds(AnyModel) | kinds(AnyLanguageModel)
    assert set(ATTENTIONS) == kinds(AnyAttention)
    assert set(PROJECTIONS) == kinds(AnyQkv)


@pytest.mark.parametrize(
    ("position", "column"), [(0, 0), (0, 1), (3, 4), (7, 5), (299, 0), (50, 9)]
)
def test_positions_follow_the_formula(position, column):
    angle = position / 10_000 ** (2 * (column // 2) / 10)
    expected = math.cos(angle) if column % 2 else math.sin(angle)
    found = sinusoidal_positions(300, 10)[position, column].item()
    assert found == pytest.approx(expected, abs=1e-4)


def test_positions_grow_to_any_length_and_start_anywhere():
    positions, table = Positions(8, length=4), sinusoidal_positions(100, 8)
    for length in (3, 40, 2):
        assert torch.equal(positions(torch.zeros(1, length, 8))[0], table[:length])
    assert torch.equal(positions(torch.zeros(2, 10, 8), start=75)[1], table[75:85])


def test_embeddings_are_scaled_and_know_their_places():
    model, seen = build(), []
    for stack in (model.encoder, model.decoder):
        stack[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(SOURCE, TARGET)
    for tokens, found in zip((SOURCE, TARGET), seen, strict=True):
        embedded = model.source_embedding(tokens) * 16**0.5
        torch.testing.assert_close(found, embedded + sinusoidal_positions(tokens.size(1), 16))


def test_several_tokens_after_a_cached_prefix_are_refused():
    model = build().eval()
    memory, cache = model.encode(SOURCE), model.new_cache()
    model.decode(memory, SOURCE, TARGET, cache)
    with pytest.raises(ValueError, match="2 tokens after a cached prefix of 4"):
        model.decode(memory, SOURCE, TARGET[:, :2], cache)


def test_initial_weights():
    model = build(d_model=64, d_ff=128, tied_embeddings=False)
    std = model.source_embedding.weight.std().item()
    assert std == pytest.approx(64**-0.5, rel=0.1)
    inner = model.encoder[0].feed_forward.inner.weight
    assert inner.abs().max().item() == pytest.approx((6 / (64 + 128)) ** 0.5, rel=0.01)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
        if isinstance(module, nn.Linear | nn.LayerNorm):
            assert module.bias is None or not module.bias.any()
        for _, weight, _ in module.blocks() if isinstance(module, Projection) else ():
            # The bound of [64, 64]; for the fused [192, 64] it would be smaller.
            assert weight.abs().max().item() == pytest.approx((6 / 128) ** 0.5, rel=0.01)
