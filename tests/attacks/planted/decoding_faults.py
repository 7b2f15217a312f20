"""Decoding: caches, masks, places and hypotheses, which no training step uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.attacks.planted.fault import IN_BF16, Change, faults_of
from tests.attacks.planted.planting import Patch, result, swap
from transformer_core.models.decoding import DecoderCache, LayerCache, PrefixCache
from transformer_core.models.transformer import EncoderDecoder

SMALL: Change = {"d_model": 16, "d_ff": 32, "heads": 2}


def one_too_late(real: Any) -> Any:
    """Keys of the token before: off by one."""

    def extend(self: LayerCache, k: Tensor, v: Tensor) -> Any:
        keys, values = real(self, k, v)
        return keys.roll(1, dims=2), values

    return extend


def only_prefixes_leave(self: DecoderCache, rows: Tensor) -> None:
    """Sources stay where they were when a sentence leaves."""
    for layer in self.layers:
        assert layer.prefix is not None
        assert layer.memory is not None
        keys, values = layer.prefix
        layer.prefix = keys.index_select(0, rows), values.index_select(0, rows)
        keys, values = layer.memory
        layer.memory = keys[: len(rows)], values[: len(rows)]


@contextmanager
def rounded_keys() -> Iterator[None]:
    """Keys and values are kept in 8 significant bits."""

    def rounding(real: Any) -> Any:
        def extend(self: LayerCache, k: Tensor, v: Tensor) -> Any:
            return real(self, k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype))

        return extend

    with swap(LayerCache, "extend", rounding)():
        yield


def places(change: Any) -> Patch:
    """Other places of the tokens that are decoded."""

    def make(real: Any) -> Any:
        def embed(
            self: Any, embedding: Any, tokens: Any, start: int = 0, places: Any = None
        ) -> Any:
            return real(self, embedding, tokens, change(start), places)

        return embed

    return swap(EncoderDecoder, "_embed", make)


decoding = faults_of("decoding")
cached = faults_of("decoding", LayerCache, "extend")


cached("keys of the cache are off by one", one_too_late, made=True)
cached("keys of the cache are off by one under bf16", one_too_late, made=True, **IN_BF16)


@cached("the cache loses its first token")
def without_the_first(real, self, k, v):
    keys, values = real(self, k, v)
    return (keys[:, :, 1:], values[:, :, 1:]) if keys.size(2) > 2 else (keys, values)


decoding("keys and values are kept in 8 bits", rounded_keys)


@decoding("padding of the source is seen in decoding", EncoderDecoder, "decode")
def unmasked_with_a_cache(real, self, memory, source, target, cache=None, **named):
    return real(self, memory, source, target, cache, **named | {"masked": cache is None})


decoding("every token is decoded at the first place", places(lambda start: 0))
decoding("tokens are decoded one place too late", places(lambda start: start + (start > 0)))


@decoding("hypotheses that change places keep their caches", DecoderCache, "reorder")
def _(real, self, rows):
    return None


@decoding("sentences that stay get the sources of others", DecoderCache, "select", made=True)
def _(real):
    return only_prefixes_leave


decoding(
    "a prefix that is computed anew lacks its last but one token",
    swap(
        PrefixCache,
        "extend",
        result(lambda t: torch.cat([t[:, :-2], t[:, -1:]], 1) if t.size(1) > 2 else t),
    ),
    base={"model": {"kind": "torch_nn", "dropout": 0.0, **SMALL}},
)
