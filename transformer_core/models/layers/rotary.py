"""Rotary positions (RoFormer, arXiv 2104.09864, 3.2.2)."""

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each [n, k / 2] or [b, 1, n, k / 2]."""


def rotation(places: Tensor, width: int, base: float) -> Rotation:
    """Of tokens at ``places`` [n] or [b, n], for heads of ``width`` elements, an even number.

    Element i is turned with element i + width / 2, by place * base^(-2 i / width): the order of
    Llama's weights in the transformers library, not that of the paper, which turns neighbours. The
    angles are worked out in 32 bits, which tell neighbours apart up to some 10^6 tokens.
    """
    even = torch.arange(0, width, 2, device=places.device, dtype=torch.float32)
    angle = places.float()[..., None] * base ** (-even / width)
    if places.dim() == 2:
        angle = angle[:, None]
    return angle.cos(), angle.sin()


def rotated(x: Tensor, turn: Rotation) -> Tensor:
    """x [b, h, n, k] turned, in its own format."""
    cos, sin = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
