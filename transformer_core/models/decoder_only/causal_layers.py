"""Layers of a decoder without an encoder: causal self-attention, then feed-forward."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.decoder_only import AnyDecoderNorm, AnyFeedForward, DecoderOnly, Gelu
from transformer_core.models.decoding.key_value_cache import LayerCache
from transformer_core.models.layers.dropout import Dropout
from transformer_core.models.layers.normalization import FusedNorm, RmsNorm
from transformer_core.models.layers.qkv_projection import build_projection
from transformer_core.models.layers.rotary import Rotation, rotated
from transformer_core.models.layers.sublayers import Attention

NORMS: dict[str, Callable[..., nn.Module]] = {
    "rms": lambda d_model, eps, bias: RmsNorm(d_model, eps),
    "layer": lambda d_model, eps, bias: FusedNorm(d_model, eps, bias=bias),
}
"""Normalization of (d_model, eps, bias) by the ``kind`` of its schema."""


def build_decoder_norm(spec: AnyDecoderNorm, d_model: int, bias: bool) -> nn.Module:
    """The normalization of ``spec`` over the last dimension, d_model elements."""
    return NORMS[spec.kind](d_model, spec.eps, bias)


class CausalAttention(Attention):
    """Every token sees itself and those before it; a head of keys and values may serve several
    heads of queries (arXiv 2305.13245)."""

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__(spec, spec.bias)
        kv_heads = spec.kv_heads or spec.heads
        self.served = spec.heads // kv_heads
        self.project = build_projection(
            spec.qkv,
            spec.d_model,
            spec.heads,
            ("query", "key", "value"),
            (spec.heads, kv_heads, kv_heads),
            spec.bias,
        )

    def forward(
        self, x: Tensor, mask: Tensor | None, turn: Rotation | None, cache: LayerCache | None
    ) -> Tensor:
        """x [b, n, d] -> [b, n, d]. A ``mask`` [b, 1, n, m] says all that is seen; without one it
        is what comes before, all of it for the single token that follows a cached prefix."""
        q, k, v = self.project(x)
        if turn is not None:
            q, k = rotated(q, turn), rotated(k, turn)
        causal = mask is None
        if cache is not None:
            causal = causal and cache.prefix is None
            k, v = cache.extend(k, v)
        if self.served > 1:
            # Written out: of torch's fused kernels, not all take fewer heads of keys.
            k, v = (part.repeat_interleave(self.served, dim=1) for part in (k, v))
        return self.attention(q, k, v, mask, causal)


class CausalFeedForward(nn.Module):
    """Token by token: two linear maps around a function, or SwiGLU."""

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__()
        self.activation, matrices = build_activation(spec.feed_forward)
        # Gate and value in one product, the gate first.
        self.inner = nn.Linear(spec.d_model, matrices * spec.d_ff, spec.bias)
        self.outer = nn.Linear(spec.d_ff, spec.d_model, spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        return self.outer(self.activation(self.inner(x)))


def swiglu(x: Tensor) -> Tensor:
    """x [..., 2 f], gate and value -> [..., f]."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def build_activation(spec: AnyFeedForward) -> tuple[Callable[[Tensor], Tensor], int]:
    """The function between the maps, and how many widths it takes for one that it gives."""
    if isinstance(spec, Gelu):
        return nn.GELU(spec.approximate), 1
    return (swiglu, 2) if spec.kind == "swiglu" else (F.relu, 1)


class CausalLayer(nn.Module):
    """x + dropout(attention(norm(x))), then the same with feed-forward."""

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__()
        self.attention_norm = build_decoder_norm(spec.norm, spec.d_model, spec.bias)
        self.self_attention = CausalAttention(spec)
        self.feed_forward_norm = build_decoder_norm(spec.norm, spec.d_model, spec.bias)
        self.feed_forward = CausalFeedForward(spec)
        self.dropout = Dropout(spec.dropout, spec.dropout_method)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        turn: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x [b, n, d], mask [b, 1, n, m] -> [b, n, d]."""
        attended = self.self_attention(self.attention_norm(x), mask, turn, cache)
        x = self.dropout.added(x, attended)
        return self.dropout.added(x, self.feed_forward(self.feed_forward_norm(x)))
