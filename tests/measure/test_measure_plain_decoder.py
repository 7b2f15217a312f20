"""The plain function of a language model against the model that is trained, in 64 bits."""

import pytest
import torch

from schemas.config.model import DecoderOnly
from schemas.config.run_spec import LanguageModel
from transformer_core.certify.number_formats import EXACT
from transformer_core.certify.plain_models import OwnModel, PlainDecoder
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

VOCABULARY, SMOOTHING = 30, 0.1
MODELS = {
    "llama": {"kv_heads": 2},
    "gpt2": {
        "bias": True,
        "positions": {"kind": "learned", "length": 12},
        "norm": {"kind": "layer"},
        "feed_forward": {"kind": "gelu"},
    },
    "exact_gelu": {"feed_forward": {"kind": "gelu", "approximate": "none"}},
    "relu": {
        "positions": {"kind": "sinusoidal"},
        "feed_forward": {"kind": "relu"},
        "tied_embeddings": False,
        "kv_heads": 1,
    },
}


def tokens():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(4, VOCABULARY, (3, 10), generator=generator)
    inputs[:, 0] = inputs[0, 4] = inputs[1, 7] = inputs[1, 8] = BOS
    labels = torch.randint(4, VOCABULARY, (3, 10), generator=generator)
    inputs[2, 6:] = labels[2, 6:] = PAD
    return torch.empty((3, 0), dtype=torch.int64), inputs, labels


@pytest.mark.parametrize("texts", ["masked", "joined"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient_agree_with_the_model(name, texts):
    spec = DecoderOnly.model_validate(
        {"layers": 2, "d_model": 16, "heads": 4, "d_ff": 20} | MODELS[name]
    )
    torch.manual_seed(1)
    model = build_model(spec, VOCABULARY)
    weights = {
        # Biases and normalizations that are not 0 or 1 show where they are left out.
        key: w + 0.1 * torch.randn_like(w)
        for key, w in canonical_state_dict(model).items()
    }
    task = LanguageModel(kind="language_model", context=12, texts=texts, prompt=2, continuation=4)
    own = OwnModel(spec, VOCABULARY, SMOOTHING, task)
    plain = PlainDecoder(spec, SMOOTHING, masked=texts == "masked")
    expected_loss, expected = own.loss_and_gradients(weights, [tokens()], EXACT)
    loss, found = plain.loss_and_gradients(weights, [tokens()], EXACT)
    # The model works angles of rotary positions out in 32 bits, even in 64.
    close = 1e-5
    assert loss == pytest.approx(expected_loss, rel=close)
    assert set(expected) <= set(found)
    for key, gradient in expected.items():
        error = (found[key] - gradient).norm() / gradient.norm().clamp(min=1e-6)
        assert error < close, key


def test_masks_matter():
    """Or the agreement above would say nothing of them."""
    spec = DecoderOnly(layers=1, d_model=16, heads=4, d_ff=20, initial_std=0.5)
    weights = canonical_state_dict(build_model(spec, VOCABULARY))
    losses = {
        masked: PlainDecoder(spec, 0.0, masked).loss_and_gradients(weights, [tokens()], EXACT)[0]
        for masked in (True, False)
    }
    assert abs(losses[True] - losses[False]) > 1e-3
