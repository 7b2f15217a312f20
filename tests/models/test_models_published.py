"""What the published code writes out, against plain formulas and against the fused kinds."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from schemas.config.model import PublishedNorm, Transformer
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import kl_divergence_sum
from transformer_core.models.registry import build_model
from transformer_core.models.sublayers import NORMS

V = 23


@pytest.mark.parametrize("d", [4, 128])
def test_the_published_norm_divides_by_the_deviation_of_a_sample(d):
    torch.manual_seed(0)
    x = torch.randn(3, 5, d)
    published, fused = NORMS["published"](d), NORMS["fused"](d)
    expected = fused(x) * math.sqrt((d - 1) / d)
    torch.testing.assert_close(published(x), expected, rtol=1e-4, atol=1e-4)


def test_the_published_loss_by_hand():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 7)
    labels = torch.tensor([[3, 4, PAD], [6, PAD, PAD]])
    expected = 0.0
    for b, t in ((0, 0), (0, 1), (1, 0)):
        log_p = logits[b, t].log_softmax(-1)
        for token in range(7):
            if token != PAD:
                share = 0.9 if token == labels[b, t] else 0.1 / 5
                expected -= share * log_p[token].item()
    torch.testing.assert_close(kl_divergence_sum(logits, labels, 0.1).item(), expected)


def model(**kinds):
    torch.manual_seed(3)
    spec = Transformer(d_model=16, d_ff=32, heads=2, dropout=0.0, **kinds)
    return build_model(spec, V)


def test_the_published_norm_has_the_weights_of_the_fused_one():
    ours, published = model(), model(norm_method=PublishedNorm(kind="published"))
    assert ours.state_dict().keys() == published.state_dict().keys()
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.state_dict().values(), published.state_dict().values(), strict=True)
    )
    norms = [m for m in published.modules() if isinstance(m, nn.LayerNorm)]
    assert {type(m) for m in norms} == {NORMS["published"]}
    x = torch.randn(2, 3, 16)
    assert not torch.allclose(norms[0](x), F.layer_norm(x, (16,)))
