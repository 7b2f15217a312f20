"""Normalization of layers (arXiv 1607.06450, 1910.07467), one class per kind."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import AnyNorm
from transformer_core.models.device_kind import device_kind


class FusedNorm(nn.LayerNorm):
    """By torch's kernel, which on a CPU adds up the gradients of weight and bias in bfloat16 where
    x or those are in it: the bias's is off by 9 % with 2,000 tokens, and by half with 8,000. There,
    what has fewer bits is computed with in 32, and gradients are rounded once."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d]."""
        bits = 8 * min(x.dtype.itemsize, self.weight.dtype.itemsize)
        if bits >= 32 or device_kind(x) != "cpu":
            return super().forward(x)
        bias = None if self.bias is None else self.bias.float()
        wide = F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), bias, self.eps)
        return wide.to(x.dtype)


class RmsNorm(nn.RMSNorm):
    """Root mean square normalization (arXiv 1910.07467) by torch's kernel, which takes x and weight
    in one format. A residual stream of fewer bits than the weight is computed with in the
    weight's."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d], in the format of x."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class PublishedNorm(nn.LayerNorm):
    """Step by step, as the Annotated Transformer computes it: a (x - mean) / (std + eps) + b.

    The standard deviation is that of a sample, with d - 1 degrees of freedom, so that the result is
    that of ``nn.LayerNorm`` times sqrt((d - 1) / d), but for eps.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.weight * (x - mean) / (std + self.eps) + self.bias


NORMS: dict[str, Callable[[int], nn.LayerNorm]] = {
    "fused": FusedNorm,
    "published": PublishedNorm,
}
"""Layer normalization by the ``kind`` of its schema."""


def build_norm(spec: AnyNorm, d_model: int) -> nn.LayerNorm:
    """The layer normalization of ``spec`` over the last dimension, d_model elements."""
    return NORMS[spec.kind](d_model)
