"""Decoding: caches, masks, positions and hypotheses, which no training step uses."""

from typing import Any

import torch
from torch import Tensor

from tests.attacks.planted.changes import IN_BF16
from tests.attacks.planted.fault import faults_of
from tests.attacks.planted.planting import put, result, swap
from transformer_core.models.decoding import DecoderCache, LayerCache, PrefixCache
from transformer_core.models.transformer import EncoderDecoder

decoding = faults_of("decoding")
cached = faults_of("decoding", LayerCache, "extend")


def one_too_late(real: Any, self: LayerCache, k: Tensor, v: Tensor) -> Any:
    """Keys of the token before: off by one."""
    keys, values = real(self, k, v)
    return keys.roll(1, dims=2), values


def kept_in_8_bits(real: Any, self: LayerCache, k: Tensor, v: Tensor) -> Any:
    """Keys and values keep 8 significant bits."""
    return real(self, *(x.bfloat16().to(x.dtype) for x in (k, v)))


def only_prefixes_leave(self: DecoderCache, rows: Tensor) -> None:
    """Sources keep their places when a sentence leaves the batch."""
    for layer in self.layers:
        assert layer.prefix is not None
        assert layer.memory is not None
        keys, values = layer.prefix
        layer.prefix = keys.index_select(0, rows), values.index_select(0, rows)
        keys, values = layer.memory
        layer.memory = keys[: len(rows)], values[: len(rows)]


def other_places(name: str, change: Any) -> None:
    """Adds the fault that tokens are decoded at other positions."""

    def embed(
        real: Any, self: Any, embedding: Any, tokens: Any, start: int = 0, places: Any = None
    ) -> Any:
        return real(self, embedding, tokens, change(start), places)

    decoding(name, EncoderDecoder, "_embed", embed)


cached("keys of the cache are off by one", one_too_late)
cached("keys of the cache are off by one under bf16", one_too_late, **IN_BF16)
cached("keys and values are kept in 8 bits", kept_in_8_bits)


@cached("the cache loses its first token")
def without_the_first(real, self, k, v):
    keys, values = real(self, k, v)
    return (keys[:, :, 1:], values[:, :, 1:]) if keys.size(2) > 2 else (keys, values)


@decoding("padding of the source is seen in decoding", EncoderDecoder, "decode")
def unmasked_with_a_cache(real, self, memory, source, target, cache=None, **named):
    return real(self, memory, source, target, cache, **named | {"masked": cache is None})


other_places("every token is decoded at the first place", lambda start: 0)
other_places("tokens are decoded one place too late", lambda start: start + (start > 0))
caches_stay = put(DecoderCache, "reorder", lambda self, rows: None)
decoding("hypotheses that change places keep their caches", caches_stay)
sources_stay = put(DecoderCache, "select", only_prefixes_leave)
decoding("sentences that stay get the sources of others", sources_stay)
shorter = result(lambda t: torch.cat([t[:, :-2], t[:, -1:]], 1) if t.size(1) > 2 else t)
decoding(
    "a prefix that is computed anew lacks its last but one token",
    swap(PrefixCache, "extend", shorter),
    base={"model": {"kind": "torch_nn", "dropout": 0.0, "d_model": 16, "d_ff": 32, "heads": 2}},
)
