"""Scaled dot-product attention (arXiv 1706.03762, 3.2.1), one function per kind.

Which keys a query may see is told in one of two ways:

- ``mask``, boolean, broadcastable to [b, h, n, m], True where the key may be seen: padding of the
  source. A row in which every key is hidden gives finite values without meaning.
- ``causal``: query i sees keys 0 to i. This is all that decoder self-attention needs. Padding comes
  after the last token of a sentence, so a causal mask hides it from every real token; what the
  padded rows themselves compute is ignored by the loss. One flag instead of a mask also lets the
  fused kernels skip the hidden half.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_core.model.dropout import dropout as drop

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]
"""(q, k, v, mask, causal, dropout) -> [b, h, n, k]."""


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """softmax(q k^T / sqrt(d_k)) v, step by step.

    q [b, h, n, k], k and v [b, h, m, k] -> [b, h, n, k]; ``dropout`` is the probability that an
    attention weight is dropped.
    """
    # Scaling the queries, not the scores, touches fewer elements and keeps fp16 in range.
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
    if causal:
        n, m = scores.shape[-2:]
        mask = torch.ones(n, m, dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = drop(scores.softmax(dim=-1), dropout)
    return weights.to(v.dtype) @ v


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """The same through ``F.scaled_dot_product_attention``, which picks a kernel for the device.

    On a CPU the fused kernel cannot drop attention weights: torch then computes step by step.
    """
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )


ATTENTIONS: dict[str, Attention] = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
}
"""Attention by the ``kind`` of its schema."""
