"""Normalization: the published one, and sums of gradients over many tokens in few bits."""

import math

import pytest
import torch
from torch import Tensor, nn

from schemas.config.model import FusedNorm, PublishedNorm, Transformer
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.registry import build_model
from transformer_core.models.sublayers import NORMS, build_norm

TOKENS, WIDTH = 8_000, 16
PUBLISHED = PublishedNorm(kind="published")


def gradients(
    spec: FusedNorm | PublishedNorm, dtype: torch.dtype, of_weights: torch.dtype
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, upstream = (torch.randn(TOKENS, WIDTH, generator=generator).bfloat16() for _ in range(2))
    made = build_norm(spec, WIDTH).to(of_weights)
    made(x.to(dtype)).backward((upstream + 0.3).to(dtype))
    return [p.grad.float() for p in made.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("spec", "of_weights", "error"),
    [
        (FusedNorm(), torch.bfloat16, 0.02),
        (PUBLISHED, torch.bfloat16, 0.02),
        (FusedNorm(), torch.float32, 1e-4),  # only the residual stream has few bits
    ],
)
def test_gradients_of_many_tokens_are_added_up_in_32_bits(spec, of_weights, error):
    found = gradients(spec, torch.bfloat16, of_weights)
    expected = gradients(spec, torch.float32, torch.float32)
    assert len(found) == 2
    for mine, right in zip(found, expected, strict=True):
        assert (mine - right).norm() < error * right.norm()


@pytest.mark.parametrize("spec", [FusedNorm(), PUBLISHED])
def test_a_stream_of_16_bits_stays_one(spec, monkeypatch):
    """Even if autocast normalizes into 32 bits, as on a GPU."""
    normalize = nn.LayerNorm.forward
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda norm, x: normalize(norm, x.float()))
    with laid_out_for("cuda"):
        assert build_norm(spec, WIDTH)(torch.randn(3, WIDTH).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("d", [4, 128])
def test_the_published_norm_divides_by_the_deviation_of_a_sample(d):
    torch.manual_seed(0)
    x = torch.randn(3, 5, d)
    published, fused = NORMS["published"](d), NORMS["fused"](d)
    expected = fused(x) * math.sqrt((d - 1) / d)
    torch.testing.assert_close(published(x), expected, rtol=1e-4, atol=1e-4)


def test_the_published_norm_has_the_weights_of_the_fused_one():
    def model(spec: FusedNorm | PublishedNorm) -> nn.Module:
        torch.manual_seed(3)
        return build_model(Transformer(d_model=16, d_ff=32, heads=2, norm_method=spec), 23)

    published = model(PUBLISHED)
    ours, theirs = model(FusedNorm()).state_dict(), published.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(map(torch.equal, ours.values(), theirs.values()))
    norms = [m for m in published.modules() if isinstance(m, nn.LayerNorm)]
    assert {type(m) for m in norms} == {NORMS["published"]}
