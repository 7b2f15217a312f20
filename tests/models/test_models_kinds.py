"""For every kind of model: padding and later tokens change nothing, caches continue a prefix."""

import pytest
import torch
from pydantic import TypeAdapter

from schemas.config.model import AnyModel
from tests.models.token_batches import pairs
from transformer_core.models.registry import build_model

V = 41
SIZES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
KINDS = {
    "pre": {"kind": "transformer"},
    "post": {"kind": "transformer", "norm": "post", "qkv": {"kind": "separate"}},
    "reference": {"kind": "transformer", "attention": {"kind": "reference"}},
    "published": {"kind": "transformer", "attention": {"kind": "published"}},
    "torch_nn": {"kind": "torch_nn"},
    "huggingface": {"kind": "huggingface"},
    "import": {"kind": "import", "factory": "docs.examples.own_model:build"},
}
kinds = pytest.mark.parametrize("kind", KINDS)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def build(kind, **fields):
    if kind == "huggingface":
        pytest.importorskip("transformers")
    torch.manual_seed(5)
    spec = SIZES | {"dropout": 0.0, "tied_embeddings": False} | KINDS[kind] | fields
    return build_model(TypeAdapter(AnyModel).validate_python(spec), V).eval()


@kinds
def test_padding_and_later_tokens_change_nothing(kind):
    source, target = pairs(V)
    model = build(kind)
    whole = model(source, target)
    torch.testing.assert_close(model(source[1:2, :4], target[1:2]), whole[1:2], **CLOSE)
    other = target.clone()
    other[:, 3:] = 5
    changed = model(source, other)
    torch.testing.assert_close(changed[:, :3], whole[:, :3], **CLOSE)
    assert not torch.allclose(changed[:, 3:], whole[:, 3:])
    others = source.clone()
    others[0, 5] = others[0, 5] % (V - 5) + 5
    assert (model(others, target)[0] - whole[0]).abs().amax(-1).min() > 1e-6


@kinds
@torch.no_grad()
def test_a_cache_continues_its_prefix_through_reorder_and_select(kind):
    source, target = pairs(V)
    model = build(kind)
    memory, cache = model.encode(source), model.new_cache()
    model.decode(memory, source, target[:, :2], cache)
    rows = torch.tensor([2, 0])
    cache.select(rows)
    memory, source, target = memory[rows], source[rows], target[rows]
    step = model.decode(memory, source, target[:, 2:3], cache)
    torch.testing.assert_close(step[:, 0], model(source, target)[:, 2], **CLOSE)
    # Two hypotheses of one source change places.
    rows = torch.tensor([0, 0])
    cache.select(rows)
    memory, source, target = memory[rows], source[rows], target[rows].clone()
    target[1, 3:] = 7
    model.decode(memory, source, target[:, 3:4], cache)
    cache.reorder(torch.tensor([1, 0]))
    step = model.decode(memory, source, target[[1, 0], 4:5], cache)
    torch.testing.assert_close(step[:, 0], model(source, target[[1, 0]])[:, 4], **CLOSE)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "import"])
def test_drops_activations_only_in_training(kind):
    source, target = pairs(V)
    model = build(kind, dropout=0.3).train()
    assert not torch.equal(model(source, target), model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))
