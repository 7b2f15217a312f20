"""Normalization in few bits: sums of gradients over many tokens."""

import pytest
import torch
from torch import Tensor, nn

from schemas.config.model import FusedNorm, PublishedNorm
from transformer_core.models.sublayers import build_norm

TOKENS, WIDTH = 8_000, 16


def gradients(
    norm: nn.Module, dtype: torch.dtype, of_weights: torch.dtype | None = None
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, upstream = (torch.randn(TOKENS, WIDTH, generator=generator).bfloat16() for _ in range(2))
    made = norm.to(of_weights or dtype)
    made(x.to(dtype)).backward((upstream + 0.3).to(dtype))
    return [p.grad.float() for p in made.parameters() if p.grad is not None]


@pytest.mark.parametrize("spec", [FusedNorm(), PublishedNorm(kind="published")])
def test_gradients_of_many_tokens_are_added_up_in_32_bits(spec):
    found = gradients(build_norm(spec, WIDTH), torch.bfloat16)
    expected = gradients(build_norm(spec, WIDTH), torch.float32)
    assert len(found) == 2
    for mine, right in zip(found, expected, strict=True):
        assert (mine - right).norm() < 0.02 * right.norm()


def test_a_residual_stream_of_few_bits_takes_none_from_the_gradients_of_weights():
    found = gradients(build_norm(FusedNorm(), WIDTH), torch.bfloat16, torch.float32)
    expected = gradients(build_norm(FusedNorm(), WIDTH), torch.float32)
    for mine, right in zip(found, expected, strict=True):
        assert (mine - right).norm() < 1e-4 * right.norm()
