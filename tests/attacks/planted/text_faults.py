"""Language models: masks, positions, heads, activations, loss, initial weights, dropout and
decoding."""

import itertools
from dataclasses import replace
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.decoding_faults import kept_in_8_bits, one_too_late
from tests.attacks.planted.dropout_faults import (
    attending_without_dropout,
    embeddings_drop_nothing,
    without_module,
)
from tests.attacks.planted.fault import faults_of
from tests.attacks.planted.planting import each_micro, put, result, swap
from tests.attacks.planted.training_faults import padding_counts
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import attention, language_model, objective
from transformer_core.models.decoding import LayerCache
from transformer_core.models.language_model import CausalAttention, Decoder

texts = faults_of("language model", base=changes.TEXTS)
attending = faults_of("language model", CausalAttention, "attention", base=changes.TEXTS)


@texts("a token of a document sees the next one", Decoder, "_stack")
def next_too(real, self, tokens, mask, *rest):
    if mask is not None and mask.size(-2) > 1:
        mask = mask | (mask.transpose(-1, -2) & torch.ones_like(mask).tril(1))
    return real(self, tokens, mask, *rest)


@attending("a token of joined texts sees the next one", base=changes.JOINED)
def joined_next_too(real, self, q, k, v, mask, causal):
    if causal:
        mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril(1)
    return real(self, q, k, v, mask, False)


@attending("the third token of a row does not see the second")
def ignored_once(real, self, q, k, v, mask, causal):
    """In the last layer, other tokens do not see the first token of their document."""
    if mask is not None and mask.size(-2) > 2:
        mask = mask.clone()
        mask[:, :, 2, 1] = False
    return real(self, q, k, v, mask, causal)


texts(
    "documents of a row see each other", swap(language_model, "together", result(torch.ones_like))
)
texts(
    "places run on across documents",
    put(language_model, "places_within", lambda s: torch.arange(s.size(1)).expand_as(s)),
    base=changes.GPT2,
)
texts("padding of a text has a loss", objective.LOGITS_LOSSES, "whole", padding_counts)


@texts("targets are two tokens later", each_micro)
def two_later(micro):
    labels = micro.target_output.roll(-1, 1)
    labels[:, -1] = PAD
    return replace(micro, target_output=labels.masked_fill(micro.target_output == PAD, PAD))


@texts("the first token of a document has no loss", each_micro)
def first_of_a_row_only(micro):
    labels = micro.target_output.clone()
    labels[:, 1:][micro.target_input[:, 1:] == 1] = PAD
    return replace(micro, target_output=labels)


texts(
    "rotary positions of another base",
    language_model,
    "rotation",
    lambda real, p, w, base: real(p, w, 50 * base),
    base=changes.WIDE_TEXTS,
)


@texts("keys are not turned", language_model, "rotated", made=True)
def second_call_unturned(real):
    count = itertools.count()
    return lambda x, turn: x if next(count) % 2 else real(x, turn)


@texts("elements are turned with neighbours", language_model, "rotated")
def turned_neighbours(real, x, turn):
    """Elements are turned with their neighbours, as in the paper."""
    apart = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return real(apart, turn)


@attending("grouped heads of keys serve other heads")
def heads_of_others(real, self, q, k, v, *rest):
    order = torch.arange(q.size(1)).view(-1, self.served).T.flatten()
    return real(self, q, k[:, order], v[:, order], *rest)


@attending("grouped heads take the values of the first")
def values_of_the_first(real, self, q, k, v, *rest):
    return real(self, q, k, v[:, :1].expand_as(v), *rest)


@texts("gate and value exchanged", language_model, "swiglu")
def up_before_gate(real, x):
    value, gate = x.chunk(2, dim=-1)
    return F.silu(gate) * value


@texts("gated by another function under bf16", language_model, "swiglu", **changes.IN_BF16)
@texts("gated by another function", language_model, "swiglu")
def gated_by_gelu(real, x):
    gate, value = x.chunk(2, dim=-1)
    return F.gelu(gate) * value


@texts(
    "the exact GELU for its approximation, of small numbers",
    nn,
    "GELU",
    base=changes.GPT2,
    missed="both agree to 7 digits for initial weights of 0.02",
)
@texts(
    "the exact GELU for its approximation",
    nn,
    "GELU",
    base=merge(changes.GPT2, {"model": {"initial_std": 0.3}}),
)
def exact_gelu(real, approximate):
    return real("none")


@texts("RMS normalization takes the mean off", language_model.RmsNorm, "forward")
def less_the_mean(real, self, x):
    return real(self, x - x.mean(-1, keepdim=True))


@texts("RMS normalization with another eps", language_model, "build_decoder_norm")
@texts(
    "one RMS normalization with another eps under bf16",
    language_model,
    "build_decoder_norm",
    **changes.IN_BF16,
)
def other_eps(real, spec):
    norm = real(spec)
    norm.eps = 1e-5
    return norm


@texts("the output map of texts is not tied", Decoder, "forward")
def detached_output(real, self, tokens, targets=None, segments=None, **named):
    hidden: list[Tensor] = []
    hook = self.norm.register_forward_hook(lambda *given: hidden.append(given[2]))
    try:
        real(self, tokens, None, segments)
    finally:
        hook.remove()
    return F.linear(hidden[0], self.embedding.weight.detach())


@texts("maps onto the residual stream are drawn as others", language_model, "_initialise")
def unscaled(real, model, spec):
    with mock.patch.object(language_model.math, "sqrt", return_value=1.0):
        real(model, spec)


@texts("learned places begin with 1", Decoder, "_embed", base=changes.GPT2)
def learned_place_too_late(real, self, tokens, places, start):
    return real(self, tokens, (places + 1).clamp(max=11), start)


texts(
    "embeddings of texts are not scaled beside sines",
    language_model.Positions,
    "forward",
    lambda real, self, x, *rest: real(self, x / 4, *rest),
    base=merge(changes.TEXTS, changes.SINUSOIDAL),
)
texts(
    "the loss in one pass of texts leaves out label 7",
    objective.HEAD_LOSSES,
    "one_pass",
    lambda real, spec, h, w, y, share: real(spec, h, w, y.masked_fill(y == 7, PAD), share),
    change=changes.ONE_PASS,
)


in_dropout = faults_of("language model", base=changes.WIDE_TEXTS, dropout=0.2)


def prompts_with_padding(real: Tensor, start: int) -> Tensor:
    """In decoding, the padding before a prompt is seen."""
    m = real.size(1)
    place = torch.arange(m)
    return (place[start:, None] >= place).expand(len(real), 1, m - start, m)


in_dropout("embeddings of texts drop nothing", Decoder, "__init__", embeddings_drop_nothing)


@in_dropout("feed-forward layers of texts drop nothing", language_model.CausalLayer, "forward")
def kept_feed_forward(real, self, x, *rest):
    mask, turn, cache = (*rest, None, None, None)[:3]
    attended = self.self_attention(self.attention_norm(x), mask, turn, cache)
    x = self.dropout.added(x, attended)
    return x + self.feed_forward(self.feed_forward_norm(x))


in_dropout(
    "attention of texts drops nothing", attention.ATTENTIONS, "sdpa", attending_without_dropout
)
in_dropout("one layer of texts drops nothing", without_module("layers.1.dropout"))
texts("keys of the texts' cache are off by one", LayerCache, "extend", one_too_late)
texts("keys and values of texts keep 8 bits", LayerCache, "extend", kept_in_8_bits)
seen = put(language_model, "seen_in_decoding", prompts_with_padding)
texts("padding before a prompt is seen", seen)


@texts("places of a prompt count its padding", Decoder, "_stack", base=changes.GPT2)
def places_from_the_row(real, self, tokens, mask, places, cache=None):
    if cache is not None and places is not None:
        start = cache.length
        places = torch.arange(start, start + tokens.size(1)).expand_as(places)
    return real(self, tokens, mask, places, cache)
