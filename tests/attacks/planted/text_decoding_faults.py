"""The language-model task: dropout and decoding."""

from typing import Any

import torch
from torch import Tensor

from tests.attacks.planted.decoding_faults import one_too_late
from tests.attacks.planted.dropout_faults import attending_without_dropout, without_module
from tests.attacks.planted.fault import GPT2, faults_of
from tests.attacks.planted.planting import swap
from tests.attacks.planted.text_faults import WIDE_TEXTS, texts
from transformer_core.models import attention, language_model
from transformer_core.models.decoding import LayerCache
from transformer_core.models.language_model import Decoder

dropping = faults_of("language model", base=WIDE_TEXTS, dropout=0.2)


def without_padding(_: Any) -> Any:
    """In decoding, what stands before a prompt is seen."""

    def seen(real: Tensor, start: int) -> Tensor:
        m = real.size(1)
        place = torch.arange(m)
        return (place[start:, None] >= place).expand(len(real), 1, m - start, m)

    return seen


@dropping("embeddings of texts drop nothing", Decoder, "__init__")
def _(real, self, spec, v):
    return (real(self, spec, v), setattr(self.dropout, "p", 0.0))[0]


@dropping("feed-forward layers of texts drop nothing", language_model.CausalLayer, "forward")
def kept_feed_forward(real, self, x, *rest):
    mask, turn, cache = (*rest, None, None, None)[:3]
    attended = self.self_attention(self.attention_norm(x), mask, turn, cache)
    x = self.dropout.added(x, attended)
    return x + self.feed_forward(self.feed_forward_norm(x))


dropping(
    "attention of texts drops nothing",
    swap(attention.ATTENTIONS, "sdpa", attending_without_dropout),
)
dropping("one layer of texts drops nothing", without_module("layers.1.dropout"))
texts("keys of the texts' cache are off by one", swap(LayerCache, "extend", one_too_late))


@texts("keys and values of texts keep 8 bits", LayerCache, "extend")
def kept_in_8_bits(real, self, k, v):
    return real(self, *(x.bfloat16().to(x.dtype) for x in (k, v)))


texts("padding before a prompt is seen", swap(language_model, "seen_in_decoding", without_padding))


@texts("places of a prompt count its padding", Decoder, "_stack", base=GPT2)
def places_from_the_row(real, self, tokens, mask, places, cache=None):
    if cache is not None and places is not None:
        start = cache.length
        places = torch.arange(start, start + tokens.size(1)).expand_as(places)
    return real(self, tokens, mask, places, cache)
