"""Rows of several pairs: which tokens belong together, and where each stands in its sentence.

The tokens tell: every source ends with EOS, every target begins with BOS, and the pairs of a row
stand in the same order on both sides. So such rows need no further tensors, and a row with one pair
is a special case.
"""

import torch
from torch import Tensor

from transformer_core.data.tokenizing.special_tokens import BOS, EOS


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
