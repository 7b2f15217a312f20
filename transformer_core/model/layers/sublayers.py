"""Sub-layers and layers of the encoder and the decoder (arXiv 1706.03762, 3.1)."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from schemas.model import Transformer
from transformer_core.model.attention import ATTENTIONS
from transformer_core.model.cache import LayerCache
from transformer_core.model.dropout import Dropout
from transformer_core.model.projection import build_projection


class Attention(nn.Module):
    """What self- and cross-attention share: attending, and the output projection."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.attend = ATTENTIONS[spec.attention.kind]
        self.dropout = spec.dropout
        self.output = nn.Linear(spec.d_model, spec.d_model)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False
    ) -> Tensor:
        """q [b, h, n, k], k and v [b, h, m, k] -> [b, n, d]."""
        dropout = self.dropout if self.training else 0.0
        heads = self.attend(q, k, v, mask, causal, dropout)
        return self.output(heads.transpose(1, 2).flatten(2))


class SelfAttention(Attention):
    """A sequence attends to itself."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__(spec)
        parts = ("query", "key", "value")
        self.project = build_projection(spec.qkv, spec.d_model, spec.heads, parts)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [b, n, d] -> [b, n, d]: every token sees the tokens that ``mask`` shows."""
        q, k, v = self.project(x)
        return self.attention(q, k, v, mask)

    def causal(self, x: Tensor, cache: LayerCache | None, mask: Tensor | None = None) -> Tensor:
        """x [b, n, d] -> [b, n, d]: a token sees itself, those before it, the cached ones; of
        these, where ``mask`` is given, what it shows."""
        q, k, v = self.project(x)
        causal = mask is None
        if cache is not None:
            # After a prefix comes a single token, the last one: it sees everything.
            causal = cache.prefix is None
            k, v = cache.extend(k, v)
        return self.attention(q, k, v, mask, causal)


class CrossAttention(Attention):
    """The decoder attends to the memory of the encoder."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__(spec)
        qkv, d_model, heads = spec.qkv, spec.d_model, spec.heads
        self.project_state = build_projection(qkv, d_model, heads, ("query",))
        self.project_memory = build_projection(qkv, d_model, heads, ("key", "value"))

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor, cache: LayerCache | None = None
    ) -> Tensor:
        """x [b, t, d], memory [b, s, d] -> [b, t, d]; keys and values are computed once a cache."""
        (q,) = self.project_state(x)
        if cache is None:
            k, v = self.project_memory(memory)
        else:
            if cache.memory is None:
                cache.memory = self.project_memory(memory)
            k, v = cache.memory
        return self.attention(q, k, v, mask)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, token by token."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.inner = nn.Linear(spec.d_model, spec.d_ff)
        self.outer = nn.Linear(spec.d_ff, spec.d_model)
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        return self.outer(self.dropout(F.relu(self.inner(x))))


class Residual(nn.Module):
    """A sub-layer with dropout, a residual connection and layer normalization.

    ``pre``: x + dropout(sublayer(norm(x))); ``post``: norm(x + dropout(sublayer(x))).
    """

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.pre = spec.norm == "pre"
        self.norm = nn.LayerNorm(spec.d_model)
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.self_attention = SelfAttention(spec)
        self.feed_forward = FeedForward(spec)
        self.residuals = nn.ModuleList(Residual(spec) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [b, s, d], mask [b, 1, 1 or s, s] -> [b, s, d]."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, mask))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, then feed-forward."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.self_attention = SelfAttention(spec)
        self.cross_attention = CrossAttention(spec)
        self.feed_forward = FeedForward(spec)
        self.residuals = nn.ModuleList(Residual(spec) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor,
        cache: LayerCache | None = None,
        own_mask: Tensor | None = None,
    ) -> Tensor:
        """x [b, t, d], memory [b, s, d], mask [b, 1, 1 or t, s] of the source -> [b, t, d].

        ``own_mask`` [b, 1, t, t] of the target hides what comes later, and perhaps more; without
        one, all that comes before is seen.
        """
        x = self.residuals[0](x, lambda y: self.self_attention.causal(y, cache, own_mask))
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, mask, cache))
        return self.residuals[2](x, self.feed_forward)
