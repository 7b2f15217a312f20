"""Layer normalization (arXiv 1607.06450), one class per kind."""

from collections.abc import Callable

from torch import Tensor, nn

from schemas.config.model import AnyNorm


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
    "fused": nn.LayerNorm,
    "published": PublishedNorm,
}
"""Layer normalization by the ``kind`` of its schema."""


def build_norm(spec: AnyNorm, d_model: int) -> nn.LayerNorm:
    """The layer normalization of ``spec`` over the last dimension, d_model elements."""
    return NORMS[spec.kind](d_model)
