"""Objectives: the loss of a batch, whatever computes it."""

import pytest
import torch
from pydantic import TypeAdapter

from schemas.config.model import DecoderOnly
from schemas.config.run_spec import LanguageModel
from schemas.config.training import AnyLoss
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.objective import objective
from transformer_core.models.registry import build_model

VOCABULARY = 20
MASKED = LanguageModel(kind="language_model", context=16)
JOINED = LanguageModel(kind="language_model", context=16, texts="joined")


def model():
    torch.manual_seed(1)
    spec = DecoderOnly(layers=2, d_model=16, heads=2, d_ff=24, initial_std=0.3)
    return build_model(spec, VOCABULARY)


def texts():
    """Two rows of 8 tokens: the first has texts of 3 and 5, the second ends with padding."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(4, VOCABULARY, (2, 8), generator=generator)
    labels = torch.randint(4, VOCABULARY, (2, 8), generator=generator)
    inputs[:, 0] = inputs[0, 3] = BOS
    inputs[1, 6:] = labels[1, 6:] = PAD
    return torch.empty((2, 0), dtype=torch.int64), inputs, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["whole", "chunked", "one_pass"])
def test_every_loss_equals_that_of_the_logits(kind, smoothing):
    loss = TypeAdapter(AnyLoss).validate_python({"kind": kind})
    module = objective(MASKED, model(), smoothing, loss)
    source, inputs, labels = texts()
    expected = token_loss_sum(module.logits(source, inputs), labels, smoothing)
    torch.testing.assert_close(module(source, inputs, labels), expected)


def test_texts_in_a_row_are_independent_unless_joined():
    source, inputs, _ = texts()
    second = inputs[:1, 3:]
    network = model()
    alone = objective(MASKED, network).logits(source[:1], second)
    masked = objective(MASKED, network).logits(source[:1], inputs[:1])[:, 3:]
    joined = objective(JOINED, network).logits(source[:1], inputs[:1])[:, 3:]
    torch.testing.assert_close(masked, alone)
    assert not torch.allclose(joined, alone, atol=1e-3)
