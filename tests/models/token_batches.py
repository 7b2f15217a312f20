"""Batches of sentence pairs."""

import torch
from torch import Tensor

from transformer_core.data.tokenizing.special_tokens import BOS, PAD


def pairs(vocabulary: int, source_tokens: int = 7, target_tokens: int = 6) -> tuple[Tensor, Tensor]:
    """Source [3, s] and target input [3, t] of random tokens; the second source ends early."""
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(4, vocabulary, (3, source_tokens), generator=generator)
    target = torch.randint(4, vocabulary, (3, target_tokens), generator=generator)
    source[1, source_tokens // 2 + 1 :] = PAD
    target[:, 0] = BOS
    return source, target
