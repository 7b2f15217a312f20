"""Sinusoidal positions (arXiv 1706.03762, 3.5) and rotary ones (RoFormer, arXiv 2104.09864, 3.2.2); in
rows of several pairs, which tokens belong together, and where each stands in its sentence.

The tokens tell: every source ends with EOS, every target begins with BOS, and the pairs of a row
stand in the same order on both sides. So such rows need no further tensors, and a row with one pair
is a special case.
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
        # Not buffers: DDP broadcasts those, and two ranks' may differ in length. By device, in a
        # dictionary that DataParallel's short-lived replicas share with the module they are of.
        self._tables: dict[torch.device, Tensor] = {}

    def forward(self, x: Tensor, start: int = 0, places: Tensor | None = None) -> Tensor:
        """``x`` [b, t, d] plus positions: of tokens that follow each other, the first one at
        position ``start``, or of tokens at ``places`` [b or 1, t], each below start + t."""
        end = start + x.size(1)
        table = self._tables.get(x.device)
        if table is None or len(table) < end:
            self.length = max(end, self.length if table is None else 2 * len(table))
            table = sinusoidal_positions(self.length, self.d_model, x.device)
            self._tables[x.device] = table
        return x + (table[start:end] if places is None else table[places]).to(x.dtype)


Rotation = tuple[Tensor, Tensor]  # cosines and sines, each [n, k / 2] or [b, 1, n, k / 2]


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


def source_segments(source: Tensor) -> Tensor:
    """source [b, s] -> [b, s] number of the pair that each token belongs to, from 0.

    Padding has a number of its own, which no target has.
    """
    ends = source == EOS
    return ends.cumsum(1) - ends.long()


def target_segments(target_input: Tensor) -> Tensor:
    """target_input [b, t] -> [b, t] number of the pair that each token belongs to, from 0.

    Padding belongs to the pair before it, so that every token sees something: a softmax over
    nothing is not a number. No real token sees padding, which comes after all of them.
    """
    return (target_input == BOS).cumsum(1) - 1


def together(queries: Tensor, keys: Tensor) -> Tensor:
    """Segments [b, n] and [b, m] -> mask [b, 1, n, m], True within a pair."""
    return queries[:, None, :, None] == keys[:, None, None, :]


def places_within(segments: Tensor) -> Tensor:
    """Segments [b, n] -> [b, n] place of each token within its segment, from 0."""
    index = torch.arange(segments.size(1), device=segments.device)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(begins, index, 0).cummax(1).values
