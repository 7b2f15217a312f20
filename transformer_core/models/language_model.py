"""This project's own language model: tokens in, logits or loss of the next tokens out.

A decoder without an encoder: layers of causal self-attention and feed-forward.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import (
    AnyFeedForward,
    DecoderOnly,
    Gelu,
    LearnedPositions,
    RotaryPositions,
)
from transformer_core.models.attention import in_decoding, mask_for_kernels, takes_sentences
from transformer_core.models.compiled_layers import compile_layers, compiled_or_plain
from transformer_core.models.decoding import (
    DecoderCache,
    LanguageModel,
    LayerCache,
    seen_in_decoding,
)
from transformer_core.models.dropout import Dropout
from transformer_core.models.interface import HeadLoss
from transformer_core.models.loss import whole_head_loss
from transformer_core.models.positions import (
    Positions,
    Rotation,
    places_within,
    rotated,
    rotation,
    together,
)
from transformer_core.models.qkv_projection import Projection, build_projection
from transformer_core.models.sublayers import (
    Attention,
    FusedNorm,
    Mask,
    RmsNorm,
    in_stream_format,
    without_weights,
)
from transformer_core.models.unpadded import Blocks, Counts, sentences_of
from transformer_core.techniques import liger
from transformer_core.techniques.liger import Kernels
from transformer_core.techniques.recomputation import recomputing


class Decoder(LanguageModel):
    """A :class:`~transformer_core.models.decoding.LanguageModel`.

    With ``segments`` a row may hold several documents: a token sees the earlier tokens of its
    document, whose positions count from 0. Padding, at the end of a row, needs no separate number,
    since no earlier token sees it.

    With ``tokens: unpadded`` training takes the documents as one list of tokens, without a mask
    (:mod:`transformer_core.models.unpadded`). Evaluation still takes rows unless its kernel takes no
    mask, and decoding always does.

    With ``checkpoint: layers`` the backward pass computes each layer again, with the same random
    numbers, instead of storing its activations.
    """

    def __init__(self, spec: DecoderOnly, vocabulary: int) -> None:
        super().__init__()
        d_model, self.spec = spec.d_model, spec
        self.blocks = getattr(spec.tokens, "blocks", 0)
        self.embedding = nn.Embedding(vocabulary, d_model)
        # None rather than the embedding, so that the matrix has one name in the state dict.
        self.output = None if spec.tied_embeddings else nn.Linear(d_model, vocabulary, bias=False)
        learned, fixed = (spec.positions.kind == kind for kind in ("learned", "sinusoidal"))
        length = spec.positions.length if isinstance(spec.positions, LearnedPositions) else 0
        self.places = nn.Embedding(length, d_model) if learned else None
        self.positions = Positions(d_model) if fixed else None
        self.dropout = Dropout(spec.dropout, spec.dropout_method)
        self.layers = nn.ModuleList(CausalLayer(spec) for _ in range(spec.layers))
        self.compile_kind = spec.compile
        compile_layers(spec.compile, *self.layers)
        self.norm = build_decoder_norm(spec)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        segments: Tensor | None = None,
        loss: HeadLoss = whole_head_loss,
        lengths: Counts | None = None,
    ) -> Tensor:
        """Loss sum in nats, a float32 scalar, of ``targets`` [b, n] other than PAD after tokens
        [b, n]; without targets, logits [b, n, v] of the next tokens. segments [b, n].

        ``loss`` computes it from the last hidden states [b, n, d], the output map [v, d] and the
        targets. ``lengths`` are the token counts of the documents, if the host knows them.
        """
        self._check_length(tokens.size(1))
        output = (self.output or self.embedding).weight
        if self.blocks and (self.training or takes_sentences(self.spec.attention, tokens)):
            multiple = self.spec.tokens.row_multiple  # type: ignore[union-attr]
            listed = sentences_of(tokens, segments, multiple, lengths)
            mask = Blocks(listed, listed, self.blocks, causal=True)
            x = self._stack(listed.rows(tokens), mask, listed.within[None])
            if targets is None:
                return F.linear(listed.batch(x), output)
            return loss(x, output, listed.rows(targets))
        seen, places = None, None
        if segments is not None:
            seen, places = together(segments, segments).tril(), places_within(segments)
            seen = mask_for_kernels(self.spec.attention, seen, self.embedding.weight)
        x = self._stack(tokens, seen, places)
        return F.linear(x, output) if targets is None else loss(x, output, targets)

    def new_cache(self) -> DecoderCache:
        return DecoderCache(len(self.layers))

    def step(self, tokens: Tensor, real: Tensor | None, cache: DecoderCache) -> Tensor:
        """Logits [b, v] of the token after tokens [b, n], which follow the cached prefix; n must be
        1 unless the prefix is empty.

        ``real`` [b, m] is False at padding, which is at the start of a row; None without padding.
        """
        start, mask = cache.length, None
        self._check_length(start + tokens.size(1))
        if real is None:
            places = torch.arange(start, start + tokens.size(1), device=tokens.device)[None]
        else:
            places = (real.cumsum(1) - 1).clamp(min=0)[:, start:]
            mask = seen_in_decoding(real, start)
            spec = in_decoding(self.spec.attention)
            mask = mask_for_kernels(spec, mask, self.embedding.weight)
        x = self._stack(tokens, mask, places, cache)
        return F.linear(x[:, -1], (self.output or self.embedding).weight)

    def _stack(
        self,
        tokens: Tensor,
        mask: Mask | None,
        places: Tensor | None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """tokens [b, n], at ``places`` [b or 1, n] or consecutive ones -> [b, n, d]."""
        if places is None:
            places = torch.arange(tokens.size(1), device=tokens.device)[None]
        x, turn = self._embed(tokens, places, 0 if cache is None else cache.length)
        for number, layer in enumerate(self.layers):
            of_layer = None if cache is None else cache.layers[number]
            call = compiled_or_plain(self.compile_kind, layer, self.spec.kept_share)
            x = recomputing(self.spec.checkpoint, number, call)(x, mask, turn, of_layer)
        return self.norm(x)

    def _embed(self, tokens: Tensor, places: Tensor, start: int) -> tuple[Tensor, Rotation | None]:
        x, positions = self.embedding(tokens), self.spec.positions
        if self.places is not None:
            x = x + self.places(places)
        elif self.positions is not None:
            # Scaled as in the paper (3.4): sines of size 1 would drown small embeddings.
            x = self.positions(x * self.spec.d_model**0.5, start, places)
        turn = None
        if isinstance(positions, RotaryPositions):
            turn = rotation(places, self.spec.d_model // self.spec.heads, positions.base)
        return self.dropout(in_stream_format(x, self.spec.residual)), turn

    def _check_length(self, tokens: int) -> None:
        places = self.places
        if places is not None and tokens > places.num_embeddings:
            raise ValueError(
                f"a row of {tokens} tokens is longer than the table of positions: raise "
                f"model.positions.length from {places.num_embeddings} to at least {tokens}, or use "
                "rotary positions"
            )


def build_decoder(spec: DecoderOnly, vocabulary: int) -> Decoder:
    """Builds a :class:`Decoder` on torch's default device, with weights from torch's seed."""
    model = without_weights(Decoder, spec, vocabulary)
    _initialise(model, spec)
    return model


def _initialise(model: Decoder, spec: DecoderOnly) -> None:
    """Draws the weights, which depend on the shape of the model, not on the kinds of its parts.

    Weights are normal, biases zero, normalizations one. As in GPT-2, maps that add to the residual
    stream get smaller weights, so that its variance does not grow with the depth.
    """
    draw = partial(nn.init.normal_, std=spec.initial_std)
    draw_added = partial(nn.init.normal_, std=spec.initial_std / math.sqrt(2 * spec.layers))
    for name, module in model.named_modules():
        if isinstance(module, Projection):
            module.initialise(draw)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding):
            draw(module.weight)
        elif isinstance(module, nn.Linear) and ".project." not in f"{name}.":
            adds = name.endswith((".self_attention.output", ".feed_forward.outer"))
            (draw_added if adds else draw)(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class LigerRmsNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d], in the format of x."""
        return liger.rms_norm(x, self.weight, self.eps or 0.0)


def build_decoder_norm(spec: DecoderOnly) -> nn.Module:
    if spec.norm.kind == "layer":
        return FusedNorm(spec.d_model, spec.norm.eps, bias=spec.bias)
    kind = LigerRmsNorm if spec.kernels == "liger" else RmsNorm
    return kind(spec.d_model, spec.norm.eps)


class CausalAttention(Attention):
    """Attention of every token to itself and earlier ones; several heads of queries may share a head
    of keys and values (arXiv 2305.13245)."""

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__(spec, spec.bias)
        kv_heads = spec.kv_heads or spec.heads
        self.served = spec.heads // kv_heads
        self.rotate: Callable[..., tuple[Tensor, Tensor]] = rotated_pair
        if spec.kernels == "liger":
            self.rotate = partial(liger.rotated, kept=spec.checkpoint == "products")
        self.project = build_projection(
            spec.qkv,
            spec.d_model,
            spec.heads,
            ("query", "key", "value"),
            (spec.heads, kv_heads, kv_heads),
            spec.bias,
        )

    def forward(
        self, x: Tensor, mask: Mask | None, turn: Rotation | None, cache: LayerCache | None
    ) -> Tensor:
        """x [b, n, d] -> [b, n, d]. A ``mask`` [b, 1, n, m] tells all that a token sees. Without one,
        it sees itself and all earlier tokens; the single token after a cached prefix sees all."""
        q, k, v = self.project(x)
        if turn is not None:
            q, k = self.rotate(q, k, turn)
        causal = mask is None
        if cache is not None:
            causal = causal and cache.prefix is None
            k, v = cache.extend(k, v)
        if self.served > 1:
            # We repeat them, since not all of torch's fused kernels take fewer heads of keys.
            k, v = (part.repeat_interleave(self.served, dim=1) for part in (k, v))
        return self.attention(q, k, v, mask, causal)


def rotated_pair(q: Tensor, k: Tensor, turn: Rotation) -> tuple[Tensor, Tensor]:
    return rotated(q, turn), rotated(k, turn)


class CausalFeedForward(nn.Module):
    """Two linear maps around an activation function, or SwiGLU, for each token."""

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__()
        self.activation, matrices = build_activation(spec.feed_forward, spec.kernels)
        # SwiGLU computes gate and value in one product, the gate first.
        self.inner = nn.Linear(spec.d_model, matrices * spec.d_ff, spec.bias)
        self.outer = nn.Linear(spec.d_ff, spec.d_model, spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, n, d] -> [b, n, d]."""
        return self.outer(self.activation(self.inner(x)))


def swiglu(x: Tensor) -> Tensor:
    """x [..., 2 f], gate and value -> [..., f]."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def build_activation(
    spec: AnyFeedForward, kernels: Kernels = "torch"
) -> tuple[Callable[[Tensor], Tensor], int]:
    """The function between the maps, and the ratio of its input width to its output width."""
    if isinstance(spec, Gelu):
        return nn.GELU(spec.approximate), 1
    if spec.kind == "swiglu":
        return (liger.swiglu if kernels == "liger" else swiglu), 2
    return F.relu, 1


class CausalLayer(nn.Module):
    """x + dropout(attention(norm(x))), then the same with feed-forward."""

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__()
        self.attention_norm = build_decoder_norm(spec)
        self.self_attention = CausalAttention(spec)
        self.feed_forward_norm = build_decoder_norm(spec)
        self.feed_forward = CausalFeedForward(spec)
        self.dropout = Dropout(spec.dropout, spec.dropout_method)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        turn: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x [b, n, d], mask [b, 1, n, m] -> [b, n, d]."""
        attended = self.self_attention(self.attention_norm(x), mask, turn, cache)
        x = self.dropout.added(x, attended)
        return self.dropout.added(x, self.feed_forward(self.feed_forward_norm(x)))
