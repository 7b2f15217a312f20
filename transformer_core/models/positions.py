"""Sinusoidal positions (arXiv 1706.03762, 3.5), rotary positions (RoFormer, arXiv 2104.09864, 3.2.2),
and the positions and segments of tokens in rows of several pairs.

Tokens alone determine the segments: every source ends with EOS, every target begins with BOS, and
the pairs of a row have the same order on both sides. Such rows need no further tensors, and a row
with one pair is a special case.
"""

import math

import torch
from torch import Tensor, nn

from transformer_core.data.tokenizing.special_tokens import BOS, EOS


def sinusoidal_positions(
    length: int, d_model: int, device: torch.device | str | None = None
) -> Tensor:
    """Table [length, d_model]: sines in the even columns, cosines in the odd ones; d_model is even.

    Wavelengths grow geometrically from 2 pi to 10,000 * 2 pi.
    """
    position = torch.arange(length, device=device, dtype=torch.float32)[:, None]
    even = torch.arange(0, d_model, 2, device=device, dtype=torch.float32)
    angle = position * torch.exp(even * (-math.log(10_000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Positions(nn.Module):
    """Adds sinusoidal positions to embeddings [b, t, d] of any length."""

    def __init__(self, d_model: int, length: int = 256) -> None:
        super().__init__()
        self.d_model = d_model
        self.length = length
        # Not buffers, because DDP broadcasts those, and their lengths may differ between ranks. By
        # device, in a dictionary that DataParallel's short-lived replicas share with this module.
        self._tables: dict[torch.device, Tensor] = {}

    def forward(self, x: Tensor, start: int = 0, places: Tensor | None = None) -> Tensor:
        """``x`` [b, t, d] plus positions: ``places`` [b or 1, t], each below start + t, or
        consecutive ones from ``start``."""
        end = start + x.size(1)
        table = self._tables.get(x.device)
        if table is None or len(table) < end:
            self.length = max(end, self.length if table is None else 2 * len(table))
            table = sinusoidal_positions(self.length, self.d_model, x.device)
            self._tables[x.device] = table
        return x + (table[start:end] if places is None else table[places]).to(x.dtype)


Rotation = tuple[Tensor, Tensor]  # cosines and sines, each [n, k / 2] or [b, 1, n, k / 2]


def rotation(places: Tensor, width: int, base: float) -> Rotation:
    """The rotation of tokens at ``places`` [n] or [b, n], for heads of ``width`` elements, which
    must be even.

    Element i rotates with element i + width / 2, by place * base^(-2 i / width): the order of
    Llama's weights in the transformers library. The paper rotates neighbours instead. We compute
    angles in 32 bits, which distinguish neighbouring places up to some 10^6 tokens.
    """
    even = torch.arange(0, width, 2, device=places.device, dtype=torch.float32)
    angle = places.float()[..., None] * base ** (-even / width)
    if places.dim() == 2:
        angle = angle[:, None]
    return angle.cos(), angle.sin()


def rotated(x: Tensor, turn: Rotation) -> Tensor:
    """Rotates x [b, h, n, k], in its own format."""
    cos, sin = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def source_segments(source: Tensor) -> Tensor:
    """source [b, s] -> [b, s] number of each token's pair, from 0.

    Padding has a separate number, which no target has.
    """
    ends = source == EOS
    return ends.cumsum(1) - ends.long()


def target_segments(target_input: Tensor) -> Tensor:
    """target_input [b, t] -> [b, t] number of each token's pair, from 0.

    Padding belongs to the pair before it, so that every token sees something, since a softmax over
    nothing is NaN. No real token sees padding, which comes after all of them.
    """
    return (target_input == BOS).cumsum(1) - 1


def together(queries: Tensor, keys: Tensor) -> Tensor:
    """Segments [b, n] and [b, m] -> mask [b, 1, n, m], True within a pair."""
    return queries[:, None, :, None] == keys[:, None, None, :]


def places_within(segments: Tensor) -> Tensor:
    """Segments [b, n] -> [b, n] position of each token within its segment, from 0."""
    index = torch.arange(segments.size(1), device=segments.device)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(begins, index, 0).cummax(1).values
