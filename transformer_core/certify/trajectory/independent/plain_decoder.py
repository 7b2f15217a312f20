"""The language model once more, as a plain function of its weights, for comparison.

It follows the papers that its parts are from and shares no code with the model that is trained: see
:mod:`transformer_core.certify.trajectory.independent.plain_model`.
"""

import math

import torch
from torch import Tensor

from schemas.config.decoder_only import (
    DecoderOnly,
    Gelu,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from transformer_core.certify.trajectory.independent.number_formats import Format
from transformer_core.certify.trajectory.independent.plain_model import Plain, Shared, Weights

BEGIN = 1
"""Token id that every text begins with, as batches have it."""


class PlainDecoder(Plain):
    """A decoder alone; with ``masked`` attention keeps within a text, and places begin anew."""

    embedding = "embedding.weight"

    def __init__(
        self,
        spec: DecoderOnly,
        label_smoothing: float,
        masked: bool,
        published_loss: bool = False,
    ) -> None:
        super().__init__(label_smoothing, published_loss)
        self.spec = spec
        self.masked = masked

    def logits(self, weights: Weights, source: Tensor, target: Tensor, form: Format) -> Tensor:
        """target [b, t] -> [b, t, v]; there is no source [b, 0]."""
        length = target.size(1)
        column = torch.arange(length, device=target.device)
        hidden = (column[None, :] > column[:, None])[None]
        place = column.expand_as(target)
        if self.masked:
            begins = target == BEGIN
            number = begins.cumsum(1)
            hidden = hidden | (number[:, :, None] != number[:, None, :])
            # The column where the text of each token begins: the last one so far.
            place = column - (column * begins).cummax(1).values
        x = form.between(self._embedded(weights, target, place, form))
        for layer in range(self.spec.layers):
            at = f"layers.{layer}."
            attended = self._attention(
                weights,
                at,
                self._norm(weights, f"{at}attention_norm", x, form),
                place,
                hidden,
                form,
            )
            x = form.between(x + attended)
            inner = self._norm(weights, f"{at}feed_forward_norm", x, form)
            x = form.between(x + self._feed_forward(weights, at, inner, form))
        x = self._norm(weights, "norm", x, form)
        output = weights["embedding.weight" if self.spec.tied_embeddings else "output.weight"]
        return form.product(x, output.T)

    def _embedded(self, weights: Weights, tokens: Tensor, place: Tensor, form: Format) -> Tensor:
        """tokens [b, t] at ``place`` [b, t] -> [b, t, d]."""
        x = weights["embedding.weight"][tokens]
        if isinstance(self.spec.positions, LearnedPositions):
            return x + weights["places.weight"][place]
        if isinstance(self.spec.positions, SinusoidalPositions):
            d = self.spec.d_model
            column = torch.arange(d // 2, device=x.device, dtype=torch.float64)
            angle = place[..., None] / 10_000 ** (2 * column / d)
            # Scaled (arXiv 1706.03762, 3.4).
            sines = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).to(x.dtype)
            return form.weight(x * math.sqrt(d)) + form.weight(sines)
        return x

    def _norm(self, weights: Weights, name: str, x: Tensor, form: Format) -> Tensor:
        """RMS normalization (arXiv 1910.07467), or that of layers (arXiv 1607.06450)."""
        norm = self.spec.norm
        if norm.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        scaled = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        scaled = scaled * weights[f"{name}.weight"]
        return form.between(self._biased(weights, name, scaled))

    def _attention(
        self, weights: Weights, at: str, x: Tensor, place: Tensor, hidden: Tensor, form: Format
    ) -> Tensor:
        heads, kv_heads = self.spec.heads, self.spec.kv_heads or self.spec.heads
        project = f"{at}self_attention.project."
        q, k, v = (
            self._linear(weights, project + part, x, form)
            .unflatten(-1, (count, -1))
            .transpose(1, 2)
            for part, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
        )
        if isinstance(self.spec.positions, RotaryPositions):
            q, k = (self._turned(part, place, self.spec.positions.base) for part in (q, k))
        # Each head of keys serves heads // kv_heads heads of queries, which are neighbours.
        serving = torch.arange(heads, device=x.device) // (heads // kv_heads)
        k, v = k[:, serving], v[:, serving]
        scores = form.product(q / math.sqrt(q.size(-1)), k.transpose(-1, -2))
        seen = Shared.apply(scores.masked_fill(hidden[:, None], -math.inf), v, form)
        together = seen.transpose(1, 2).flatten(2)
        return self._linear(weights, f"{at}self_attention.output", together, form)

    @staticmethod
    def _turned(x: Tensor, place: Tensor, base: float) -> Tensor:
        """x [b, h, t, k] as k / 2 complex numbers, times one of size 1 (arXiv 2104.09864): element
        i is the real part, and i + k / 2 the imaginary one, as in Llama."""
        half = x.size(-1) // 2
        wave = base ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
        angle = (place[:, None, :, None] * wave).to(x.dtype)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat([turned.real, turned.imag], -1)

    def _feed_forward(self, weights: Weights, at: str, x: Tensor, form: Format) -> Tensor:
        inner = self._linear(weights, f"{at}feed_forward.inner", x, form)
        kind = self.spec.feed_forward
        if kind.kind == "swiglu":
            gate, value = inner.chunk(2, -1)
            inner = gate / (1 + (-gate).exp()) * value
        elif isinstance(kind, Gelu):
            inner = inner * _normal_share(inner, kind.approximate == "tanh")
        else:
            with torch.no_grad():
                size = inner.square().mean().sqrt()
                self.nearest = min(self.nearest, float(inner.abs().min() / size))
                opened = inner > form.gate * size
            inner = inner * opened
        return self._linear(weights, f"{at}feed_forward.outer", form.between(inner), form)

    def _linear(self, weights: Weights, name: str, x: Tensor, form: Format) -> Tensor:
        return self._biased(weights, name, form.product(x, weights[f"{name}.weight"].T))

    @staticmethod
    def _biased(weights: Weights, name: str, x: Tensor) -> Tensor:
        return x + weights[f"{name}.bias"] if f"{name}.bias" in weights else x


def _normal_share(x: Tensor, approximate: bool) -> Tensor:
    """The share of a normal distribution below x (arXiv 1606.08415)."""
    if approximate:
        return (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2
    return (1 + (x / math.sqrt(2)).erf()) / 2
