"""torch.nn.Transformer with the same weights computes the same as this project's layers."""

import pytest
import torch

from schemas.config.model import TorchTransformer, Transformer
from tests.models.token_batches import pairs
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

V = 37
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 16, "d_ff": 24, "heads": 2}


def build(kind, seed=1, **fields):
    schema = {"transformer": Transformer, "torch_nn": TorchTransformer}[kind]
    torch.manual_seed(seed)
    return build_model(schema(kind=kind, **{**SIZES, "dropout": 0.0, **fields}), V)


def batch():
    source, target = pairs(V)
    target[2, 3:] = PAD
    labels = target.roll(-1, dims=1)
    labels[:, -1] = PAD
    return source, target, labels.masked_fill(target == PAD, PAD)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_starts_from_the_same_weights(norm, tied):
    ours, theirs = (
        build(kind, norm=norm, tied_embeddings=tied) for kind in ("transformer", "torch_nn")
    )
    mine, other = canonical_state_dict(ours), canonical_state_dict(theirs)
    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, other[name]), name
    # Every parameter has a canonical name, so none lacks a value.
    assert sum(t.numel() for t in other.values()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_computes_the_same_function_and_gradients(norm, training):
    source, target, labels = batch()
    logits, gradients = {}, {}
    for kind in ("transformer", "torch_nn"):
        model = build(kind, norm=norm).train(training)
        # Biases of 0 and normalizations of 1 would hide mix-ups.
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for _, tensor in sorted(canonical_state_dict(model).items()):
                tensor += 0.2 * torch.randn(tensor.shape, generator=generator)
        logits[kind] = model(source, target)
        token_loss_sum(logits[kind], labels).backward()
        for p in model.parameters():
            p.data = p.grad
        gradients[kind] = canonical_state_dict(model)
    theirs, ours = (logits[kind][labels != PAD] for kind in ("torch_nn", "transformer"))
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        gradients["torch_nn"], gradients["transformer"], rtol=1e-3, atol=2e-5
    )
