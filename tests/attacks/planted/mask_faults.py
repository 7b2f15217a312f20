"""Masks, positions, padding, packing, and computing without padding."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attacks.planted.fault import BF16, LARGER, PACKED, UNPADDED, Fault
from tests.attacks.planted.planting import Patch, swap
from transformer_core.data.tokenizing.special_tokens import EOS
from transformer_core.models import positions, sublayers, unpadded
from transformer_core.models import transformer as transformer_module


def attention_with(**changes: Any) -> Patch:
    """torch's fused attention, called with other arguments."""

    def make(real: Any) -> Any:
        return lambda *args, **named: real(*args, **(named | changes))

    return swap(F, "scaled_dot_product_attention", make)


def shifted_causal(real: Any) -> Any:
    """Every token sees the next one too."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
        if named.get("is_causal"):
            n = q.size(-2)
            mask = torch.ones(n, n, dtype=torch.bool).tril(1)
            named |= {"is_causal": False, "attn_mask": mask}
        return real(q, k, v, **named)

    return attend


def scores_of_another_size(real: Any) -> Any:
    return lambda q, *args, **named: real(q * 1.02, *args, **named)


@contextlib.contextmanager
def one_layer_of_another_size() -> Iterator[None]:
    """The first attention of every model takes scores that are 2 % too large."""
    numbers = itertools.count()

    def numbered(real: Any) -> Any:
        def init(self: Any, spec: Any, *rest: Any) -> None:
            real(self, spec, *rest)
            attentions = spec.encoder_layers + 2 * spec.decoder_layers
            self.factor = 1.02 if next(numbers) % attentions == 0 else 1.0

        return init

    def scaled(real: Any) -> Any:
        return lambda self, q, *rest: real(self, q * self.factor, *rest)

    attention = sublayers.Attention
    with swap(attention, "__init__", numbered)(), swap(attention, "attention", scaled)():
        yield


def mask_of(made: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda real: lambda *args: made(real(*args))


def grids_without_masks(self: Any) -> Any:
    found = _GRIDS(self)
    return replace(found, masks=[torch.ones_like(mask) for mask in found.masks])


_GRIDS = unpadded.Blocks._grids.func


def last_block_lost(real: Any) -> Any:
    def backward(ctx: Any, grad: Tensor) -> Any:
        *others, last = real(ctx, grad)
        return (*others, last * 0)

    return backward


FAULTS = [
    Fault("no causal mask", "masks", attention_with(is_causal=False)),
    Fault(
        "a token sees the next one",
        "masks",
        swap(F, "scaled_dot_product_attention", shifted_causal),
    ),
    Fault(
        "padding of the source is seen",
        "padding",
        swap(transformer_module, "source_mask", mask_of(torch.ones_like)),
    ),
    Fault(
        "the last token of a source is not seen",
        "padding",
        swap(transformer_module, "source_mask", mask_of(lambda m: m & m.roll(-1, -1))),
    ),
    Fault(
        "scores 2 % too large",
        "masks",
        swap(F, "scaled_dot_product_attention", scores_of_another_size),
    ),
    Fault(
        "scores 2 % too large under bf16",
        "masks",
        swap(F, "scaled_dot_product_attention", scores_of_another_size),
        BF16,
        base=LARGER,
        kind="statistical",
    ),
    Fault(
        "scores of one layer 2 % too large under bf16",
        "masks",
        one_layer_of_another_size,
        BF16,
        base=LARGER,
        kind="statistical",
    ),
    Fault(
        "positions begin with 1",
        "masks",
        swap(
            positions,
            "sinusoidal_positions",
            lambda real: lambda n, d, device=None: real(n + 1, d, device)[1:],
        ),
    ),
    Fault(
        "packed pairs see each other",
        "packing",
        swap(transformer_module, "together", mask_of(torch.ones_like)),
        PACKED,
    ),
    Fault(
        "positions go on across packed pairs",
        "packing",
        swap(
            transformer_module,
            "places_within",
            lambda _: lambda s: torch.arange(s.size(1)).expand_as(s),
        ),
        PACKED,
    ),
    Fault(
        "the last token of a packed source belongs to the next pair",
        "packing",
        swap(transformer_module, "source_segments", lambda _: lambda s: (s == EOS).cumsum(1)),
        PACKED,
    ),
    Fault(
        "a packed target goes on with the pair before",
        "packing",
        swap(
            transformer_module,
            "target_segments",
            lambda real: lambda t: (real(t) - 1).clamp(min=0),
        ),
        PACKED,
    ),
    Fault(
        "padding of blocks is seen",
        "unpadded",
        swap(unpadded.Blocks, "_grids", lambda _: property(grids_without_masks)),
        UNPADDED,
    ),
    Fault(
        "positions count on through the list of tokens",
        "unpadded",
        swap(
            unpadded.Sentences,
            "within",
            lambda _: property(lambda self: F.pad(self.places, (0, self.fill)) % 512),
        ),
        UNPADDED,
    ),
    Fault(
        "no gradient from the last block",
        "unpadded",
        swap(unpadded._Collect, "backward", last_block_lost),
        UNPADDED,
    ),
    Fault(
        "blocks see what comes later",
        "unpadded",
        swap(
            unpadded.Blocks,
            "__init__",
            lambda real: lambda self, q, k, n, causal: real(self, q, k, n, False),
        ),
        UNPADDED,
    ),
]
