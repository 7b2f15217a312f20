"""Normalization, sub-layers and layers of encoder and decoder (arXiv 1706.03762, 3.1)."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import AnyNorm, DecoderOnly, ResidualFormat, Transformer
from transformer_core.models.attention import (
    build_attention,
    flash_over_sentences,
    in_decoding,
    takes_sentences,
)
from transformer_core.models.decoding import LayerCache
from transformer_core.models.device_kind import device_kind
from transformer_core.models.dropout import DROPOUTS, Dropout
from transformer_core.models.qkv_projection import build_projection
from transformer_core.models.unpadded import Blocks
from transformer_core.techniques.residual_norm import added_and_normalized

Mask = Tensor | Blocks
"""The keys that each query sees: a boolean tensor, or given by the sentences in a list of tokens."""

Memory = Tensor | tuple[Tensor, ...]
"""Output of the encoder [b, s, d], or its keys and values [b, h, s, k] for one layer."""


Model = TypeVar("Model", bound=nn.Module)


def without_weights(kind: Callable[[Any, int], Model], spec: Any, vocabulary: int) -> Model:
    """A model on torch's default device, whose weights are yet to be drawn. Its constructor, without
    storage, neither draws random numbers nor fills memory a second time."""
    device = torch.empty(0).device
    with torch.device("meta"):
        model = kind(spec, vocabulary)
    return model.to_empty(device=device)


class Attention(nn.Module):
    """The common part of self- and cross-attention: attention itself and the output projection."""

    def __init__(self, spec: Transformer | DecoderOnly, bias: bool = True) -> None:
        super().__init__()
        self.spec = spec.attention
        self.attend = build_attention(spec.attention)
        self.attend_in_decoding = build_attention(in_decoding(spec.attention))
        self.dropout = spec.dropout
        self.drop = DROPOUTS[spec.dropout_method.kind]
        self.output = nn.Linear(spec.d_model, spec.d_model, bias)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, causal: bool = False
    ) -> Tensor:
        """q [b, h, n, k], k and v [b, h, m, k] -> [b, n, d]."""
        dropout = self.dropout if self.training else 0.0
        if isinstance(mask, Blocks) and takes_sentences(self.spec, q):
            heads = mask.sentence_by_sentence(flash_over_sentences, q, k, v, dropout)
        elif isinstance(mask, Blocks):
            heads = mask.attention(self.attend, q, k, v, dropout, self.drop)
        else:
            attend = self.attend if self.training else self.attend_in_decoding
            heads = attend(q, k, v, mask, causal, dropout, self.drop)
        return self.output(heads.transpose(1, 2).flatten(2))


class SelfAttention(Attention):
    """A sequence attends to itself."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__(spec)
        parts = ("query", "key", "value")
        self.project = build_projection(spec.qkv, spec.d_model, spec.heads, parts)

    def forward(self, x: Tensor, mask: Mask | None) -> Tensor:
        """x [b, n, d] -> [b, n, d]: every token sees the tokens that ``mask`` allows."""
        q, k, v = self.project(x)
        return self.attention(q, k, v, mask)

    def causal(self, x: Tensor, cache: LayerCache | None, mask: Mask | None = None) -> Tensor:
        """x [b, n, d] -> [b, n, d]: a token sees itself, earlier ones and the cached ones, of which
        ``mask`` may hide some."""
        q, k, v = self.project(x)
        causal = mask is None
        if cache is not None:
            # Only a single token may follow a prefix, and it sees everything.
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
        self, x: Tensor, memory: Memory, mask: Mask | None, cache: LayerCache | None = None
    ) -> Tensor:
        """x [b, t, d], memory [b, s, d] -> [b, t, d]; a cache keeps the keys and values."""
        (q,) = self.project_state(x)
        if not isinstance(memory, Tensor):
            k, v = memory
        elif cache is None:
            k, v = self.project_memory(memory)
        else:
            if cache.memory is None:
                cache.memory = self.project_memory(memory)
            k, v = cache.memory
        return self.attention(q, k, v, mask)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, for each token."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.inner = nn.Linear(spec.d_model, spec.d_ff)
        self.outer = nn.Linear(spec.d_ff, spec.d_model)
        self.dropout = Dropout(spec.dropout, spec.dropout_method)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        return self.outer(self.dropout.of_relu(self.inner(x)))


class Residual(nn.Module):
    """A sub-layer with dropout, a residual connection and layer normalization.

    ``pre``: x + dropout(sublayer(norm(x))); ``post``: norm(x + dropout(sublayer(x))).
    """

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.pre = spec.norm == "pre"
        self.one_kernel = spec.norm_method.kind == "with_residual"
        self.norm = build_norm(spec.norm_method, spec.d_model)
        self.dropout = Dropout(spec.dropout, spec.dropout_method)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        if self.pre:
            return self.dropout.added(x, sublayer(self.norm(x)))
        return self.norm(self.dropout.added(x, sublayer(x)))


def through(residuals: nn.ModuleList, x: Tensor, *sublayers: Callable[[Tensor], Tensor]) -> Tensor:
    """x [b, n, d] -> [b, n, d] through each sub-layer with its :class:`Residual`. In training, if the
    spec asks for it, one kernel computes an addition and the normalization after it."""
    first: Any = residuals[0]
    if not (first.one_kernel and first.training):
        for residual, sublayer in zip(residuals, sublayers, strict=True):
            x = residual(x, sublayer)
        return x
    kind, p = device_kind(x), first.dropout.p
    norms = [residual.norm for residual in residuals]
    if not first.pre:
        for norm, sublayer in zip(norms, sublayers, strict=True):
            x = added_and_normalized(x, sublayer(x), norm, p, kind, post=True)[1]  # type: ignore[arg-type]
        return x
    normed = first.norm(x)
    for norm, sublayer in zip(norms[1:], sublayers[:-1], strict=True):
        x, normed = added_and_normalized(x, sublayer(normed), norm, p, kind)  # type: ignore[arg-type]
    return first.dropout.added(x, sublayers[-1](normed))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.self_attention = SelfAttention(spec)
        self.feed_forward = FeedForward(spec)
        self.residuals = nn.ModuleList(Residual(spec) for _ in range(2))

    def forward(self, x: Tensor, mask: Mask | None) -> Tensor:
        """x [b, s, d], mask [b, 1, 1 or s, s] -> [b, s, d]."""
        return through(self.residuals, x, lambda y: self.self_attention(y, mask), self.feed_forward)


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
        memory: Memory,
        mask: Mask | None,
        cache: LayerCache | None = None,
        own_mask: Mask | None = None,
    ) -> Tensor:
        """x [b, t, d], memory [b, s, d], mask [b, 1, 1 or t, s] of the source -> [b, t, d].

        ``own_mask`` [b, 1, t, t] of the target hides at least all later tokens; without it, a token
        sees all earlier ones.
        """
        return through(
            self.residuals,
            x,
            lambda y: self.self_attention.causal(y, cache, own_mask),
            lambda y: self.cross_attention(y, memory, mask, cache),
            self.feed_forward,
        )


def in_stream_format(x: Tensor, kind: ResidualFormat) -> Tensor:
    """Converts x to the number format of the residual stream. Without autocast x keeps the format of
    the weights, since an evaluation takes bfloat16 weights in 32 bits."""
    lower = kind == "bf16" and torch.is_autocast_enabled(x.device.type)
    return x.bfloat16() if lower else x


class FusedNorm(nn.LayerNorm):
    """Layer normalization by torch's kernel. On a CPU the kernel adds up the gradients of weight and
    bias in bfloat16 if x or they are in it: the bias's is off by 9 % with 2,000 tokens, and by half
    with 8,000. There we compute in 32 bits and round gradients once."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d], in the format of x."""
        bits = 8 * min(x.dtype.itemsize, self.weight.dtype.itemsize)
        if bits >= 32 or device_kind(x) != "cpu":
            return super().forward(x).to(x.dtype)  # a GPU's autocast gives 32 bits
        bias = None if self.bias is None else self.bias.float()
        wide = F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), bias, self.eps)
        return wide.to(x.dtype)


class RmsNorm(nn.RMSNorm):
    """Root mean square normalization (arXiv 1910.07467) by torch's kernel, which takes x and weight
    in one format. We convert a residual stream of fewer bits to the weight's format."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d], in the format of x."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class PublishedNorm(nn.LayerNorm):
    """Step by step, as in the Annotated Transformer: a (x - mean) / (std + eps) + b.

    It uses the sample standard deviation, with d - 1 degrees of freedom. Apart from eps, the result
    is therefore that of ``nn.LayerNorm`` times sqrt((d - 1) / d).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, n, d] -> [b, n, d], in the format of x."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return (self.weight * (x - mean) / (std + self.eps) + self.bias).to(x.dtype)


NORMS: dict[str, Callable[[int], nn.LayerNorm]] = {
    "fused": FusedNorm,
    "published": PublishedNorm,
    "with_residual": FusedNorm,
}
"""Layer normalization by the ``kind`` of its schema."""


def build_norm(spec: AnyNorm, d_model: int) -> nn.LayerNorm:
    """The layer normalization of ``spec`` over the last dimension, d_model elements."""
    return NORMS[spec.kind](d_model)
