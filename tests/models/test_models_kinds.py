"""For every kind of model: padding and later tokens change nothing, caches continue a prefix; and
torch.nn.Transformer with the same weights computes the same as this project's layers."""

import pytest
import torch
from pydantic import TypeAdapter

from schemas.config.model import AnyModel
from tests.models.token_batches import pairs
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.qkv_projection import canonical_state_dict
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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_torchs_layers_start_from_the_same_weights(norm, tied):
    ours, theirs = (build(kind, norm=norm, tied_embeddings=tied) for kind in ("pre", "torch_nn"))
    mine, other = canonical_state_dict(ours), canonical_state_dict(theirs)
    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, other[name]), name
    # Every parameter has a canonical name, so none lacks a value.
    assert sum(t.numel() for t in other.values()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_torchs_layers_compute_the_same_function_and_gradients(norm, training):
    source, target = pairs(V)
    target[2, 3:] = PAD
    labels = target.roll(-1, dims=1)
    labels[:, -1] = PAD
    labels = labels.masked_fill(target == PAD, PAD)
    logits, gradients = {}, {}
    for kind in ("pre", "torch_nn"):
        model = build(kind, norm=norm, tied_embeddings=True).train(training)
        # Biases of 0 and normalizations of 1 would hide mix-ups.
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for _, tensor in sorted(canonical_state_dict(model).items()):
                tensor += 0.2 * torch.randn(tensor.shape, generator=generator)
        found = model(source, target)
        token_loss_sum(found, labels).backward()
        logits[kind] = found[labels != PAD]
        for p in model.parameters():
            p.data = p.grad
        gradients[kind] = canonical_state_dict(model)
    torch.testing.assert_close(logits["torch_nn"], logits["pre"], **CLOSE)
    torch.testing.assert_close(gradients["torch_nn"], gradients["pre"], rtol=1e-3, atol=2e-5)
