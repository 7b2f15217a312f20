"""The language-model task: masks, places, heads, activations, loss and initial weights."""

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.base import merge
from tests.attacks.planted.fault import BF16, GPT2, TEXTS, Change, Fault
from tests.attacks.planted.loss_faults import ONE_PASS, padding_counts
from tests.attacks.planted.mask_faults import mask_of
from tests.attacks.planted.planting import Patch, each_micro, swap, swap_item
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import language_model as causal_layers
from transformer_core.models import language_model as decoder
from transformer_core.models import objective
from transformer_core.models.language_model import CausalAttention, Decoder

FAMILY = "language model"
WIDE_TEXTS: Change = merge(TEXTS, {"model": {"d_model": 32, "d_ff": 64}})
JOINED: Change = merge(TEXTS, {"task": {"texts": "joined"}})
SINUSOIDAL: Change = merge(TEXTS, {"model": {"positions": {"kind": "sinusoidal"}}})


def texts(name: str, patch: Patch, change: Change | None = None, **more: Any) -> Fault:
    return Fault(name, FAMILY, patch, change or {}, more.pop("base", TEXTS), **more)


def next_too(real: Any) -> Any:
    """A mask that shows the next token too, if it is of the same document."""

    def stack(self: Any, tokens: Tensor, mask: Tensor | None, *rest: Any) -> Tensor:
        if mask is not None and mask.size(-2) > 1:
            mask = mask | (mask.transpose(-1, -2) & torch.ones_like(mask).tril(1))
        return real(self, tokens, mask, *rest)

    return stack


def joined_next_too(real: Any) -> Any:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool) -> Tensor:
        if causal:
            mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril(1)
        return real(self, q, k, v, mask, False)

    return attend


def ignored_once(real: Any) -> Any:
    """The first of a document's tokens is not seen by the last layer's other tokens."""

    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool) -> Tensor:
        if mask is not None and mask.size(-2) > 2:
            mask = mask.clone()
            mask[:, :, 2, 1] = False
        return real(self, q, k, v, mask, causal)

    return attend


def second_call_unturned(real: Any) -> Any:
    count = itertools.count()
    return lambda x, turn: x if next(count) % 2 else real(x, turn)


def turned_neighbours(real: Any) -> Any:
    """Elements are turned with their neighbours, as in the paper."""

    def rotated(x: Tensor, turn: Any) -> Tensor:
        apart = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return real(apart, turn)

    return rotated


def heads_of_others(real: Any) -> Any:
    """Heads of keys serve every second head of queries, not neighbours."""

    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        order = torch.arange(q.size(1)).view(-1, self.served).T.flatten()
        return real(self, q, k[:, order], v[:, order], *rest)

    return attend


def values_of_the_first(real: Any) -> Any:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        return real(self, q, k, v[:, :1].expand_as(v), *rest)

    return attend


def up_before_gate(_: Any) -> Any:
    def swiglu(x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return F.silu(gate) * value

    return swiglu


def gated_by_gelu(_: Any) -> Any:
    def swiglu(x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.gelu(gate) * value

    return swiglu


def exact_gelu(real: Any) -> Any:
    return lambda approximate: real("none")


def less_the_mean(real: Any) -> Any:
    return lambda self, x: real(self, x - x.mean(-1, keepdim=True))


def other_eps(eps: float) -> Any:
    def make(real: Any) -> Any:
        def build(spec: Any) -> nn.Module:
            made = real(spec)
            made.eps = eps
            return made

        return build

    return make


def detached_output(real: Any) -> Any:
    """The output map is not the embedding, but a copy that never learns."""

    def forward(
        self: Any, tokens: Tensor, targets: Any = None, segments: Any = None, **named: Any
    ) -> Tensor:
        hidden: list[Tensor] = []
        hook = self.norm.register_forward_hook(lambda *given: hidden.append(given[2]))
        try:
            real(self, tokens, None, segments)
        finally:
            hook.remove()
        return F.linear(hidden[0], self.embedding.weight.detach())

    return forward


def two_later(micro: Any) -> Any:
    labels = micro.target_output.roll(-1, 1)
    labels[:, -1] = PAD
    return replace(micro, target_output=labels.masked_fill(micro.target_output == PAD, PAD))


def first_of_a_row_only(micro: Any) -> Any:
    """Texts that begin within a row have no loss for their first token."""
    labels = micro.target_output.clone()
    labels[:, 1:][micro.target_input[:, 1:] == 1] = PAD
    return replace(micro, target_output=labels)


def unscaled(real: Any) -> Any:
    """All maps are drawn alike, also those that add to the residual stream."""

    def initialise(model: Any, spec: Any) -> None:
        with mock.patch.object(decoder.math, "sqrt", return_value=1.0):
            real(model, spec)

    return initialise


def learned_place_too_late(real: Any) -> Any:
    def embed(self: Any, tokens: Tensor, places: Tensor, start: int) -> Any:
        return real(self, tokens, (places + 1).clamp(max=11), start)

    return embed


SMALL_EPS = 1e-5


FAULTS = [
    texts("a token of a document sees the next one", swap(Decoder, "_stack", next_too)),
    texts(
        "a token of joined texts sees the next one",
        swap(CausalAttention, "attention", joined_next_too),
        base=JOINED,
    ),
    texts(
        "the third token of a row does not see the second",
        swap(CausalAttention, "attention", ignored_once),
    ),
    texts("documents of a row see each other", swap(decoder, "together", mask_of(torch.ones_like))),
    texts(
        "places run on across documents",
        swap(
            decoder,
            "places_within",
            lambda _: lambda s: torch.arange(s.size(1)).expand_as(s),
        ),
        base=GPT2,  # turns by rotary positions depend on distances alone
    ),
    texts(
        "padding of a text has a loss",
        swap_item(objective.LOGITS_LOSSES, "whole", padding_counts),
    ),
    texts("targets are two tokens later", each_micro(two_later)),
    texts("the first token of a document has no loss", each_micro(first_of_a_row_only)),
    texts(
        "rotary positions of another base",
        swap(decoder, "rotation", lambda real: lambda p, w, base: real(p, w, 50 * base)),
        base=WIDE_TEXTS,
    ),
    texts("keys are not turned", swap(causal_layers, "rotated", second_call_unturned)),
    texts("elements are turned with neighbours", swap(causal_layers, "rotated", turned_neighbours)),
    texts(
        "grouped heads of keys serve other heads",
        swap(CausalAttention, "attention", heads_of_others),
    ),
    texts(
        "grouped heads take the values of the first",
        swap(CausalAttention, "attention", values_of_the_first),
    ),
    texts("gate and value exchanged", swap(causal_layers, "swiglu", up_before_gate)),
    texts("gated by another function", swap(causal_layers, "swiglu", gated_by_gelu)),
    texts(
        "gated by another function under bf16",
        swap(causal_layers, "swiglu", gated_by_gelu),
        BF16,
        kind="statistical",
    ),
    texts(
        "the exact GELU for its approximation",
        swap(nn, "GELU", exact_gelu),
        base=merge(GPT2, {"model": {"initial_std": 0.3}}),
    ),
    texts(
        "the exact GELU for its approximation, of small numbers",
        swap(nn, "GELU", exact_gelu),
        base=GPT2,
        missed="both agree to 7 digits for initial weights of 0.02",
    ),
    texts(
        "RMS normalization takes the mean off",
        swap(causal_layers.RmsNorm, "forward", less_the_mean),
    ),
    texts(
        "RMS normalization with another eps",
        swap(decoder, "build_decoder_norm", other_eps(SMALL_EPS)),
    ),
    texts(
        "one RMS normalization with another eps under bf16",
        swap(decoder, "build_decoder_norm", other_eps(SMALL_EPS)),
        BF16,
        kind="statistical",
    ),
    texts("the output map of texts is not tied", swap(Decoder, "forward", detached_output)),
    texts(
        "maps onto the residual stream are drawn as others", swap(decoder, "_initialise", unscaled)
    ),
    texts(
        "learned places begin with 1", swap(Decoder, "_embed", learned_place_too_late), base=GPT2
    ),
    texts(
        "embeddings of texts are not scaled beside sines",
        swap(
            decoder.Positions,
            "forward",
            lambda real: lambda self, x, *rest: real(self, x / 4, *rest),
        ),
        base=SINUSOIDAL,
    ),
    texts(
        "the loss in one pass of texts leaves out label 7",
        swap_item(
            objective.HEAD_LOSSES,
            "one_pass",
            lambda real: (
                lambda spec, h, w, y, share: real(spec, h, w, y.masked_fill(y == 7, PAD), share)
            ),
        ),
        ONE_PASS,
    ),
]
