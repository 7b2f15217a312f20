"""Masks, positions, padding, packing, and computing without padding."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attacks.planted.fault import IN_BF16, LARGER, PACKED, UNPADDED, fault
from tests.attacks.planted.planting import Patch, swap
from transformer_core.data.tokenizing.special_tokens import EOS
from transformer_core.models import positions, sublayers, unpadded
from transformer_core.models import transformer as transformer_module


def attention_with(**changes: Any) -> Patch:
    """torch's fused attention, called with other arguments."""

    def make(real: Any) -> Any:
        return lambda *args, **named: real(*args, **(named | changes))

    return swap(F, "scaled_dot_product_attention", make)


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


def packed(name: str, *place: Any) -> Any:
    return fault(name, "packing", *place, change=PACKED)


fault("no causal mask", "masks", attention_with(is_causal=False))


@fault("a token sees the next one", "masks", F, "scaled_dot_product_attention")
def shifted_causal(real, q, k, v, **named):
    """Every token sees the next one too."""
    if named.get("is_causal"):
        n = q.size(-2)
        mask = torch.ones(n, n, dtype=torch.bool).tril(1)
        named |= {"is_causal": False, "attn_mask": mask}
    return real(q, k, v, **named)


fault(
    "padding of the source is seen",
    "padding",
    swap(transformer_module, "source_mask", mask_of(torch.ones_like)),
)
fault(
    "the last token of a source is not seen",
    "padding",
    swap(transformer_module, "source_mask", mask_of(lambda m: m & m.roll(-1, -1))),
)


@fault(
    "scores 2 % too large under bf16",
    "masks",
    F,
    "scaled_dot_product_attention",
    base=LARGER,
    **IN_BF16,
)
@fault("scores 2 % too large", "masks", F, "scaled_dot_product_attention")
def scores_of_another_size(real, q, *args, **named):
    return real(q * 1.02, *args, **named)


fault(
    "scores of one layer 2 % too large under bf16",
    "masks",
    one_layer_of_another_size,
    base=LARGER,
    **IN_BF16,
)


@fault("positions begin with 1", "masks", positions, "sinusoidal_positions")
def _(real, n, d, device=None):
    return real(n + 1, d, device)[1:]


packed(
    "packed pairs see each other", swap(transformer_module, "together", mask_of(torch.ones_like))
)


@packed("positions go on across packed pairs", transformer_module, "places_within")
def _(real, s):
    return torch.arange(s.size(1)).expand_as(s)


@packed(
    "the last token of a packed source belongs to the next pair",
    transformer_module,
    "source_segments",
)
def _(real, s):
    return (s == EOS).cumsum(1)


@packed("a packed target goes on with the pair before", transformer_module, "target_segments")
def _(real, t):
    return (real(t) - 1).clamp(min=0)


@fault(
    "padding of blocks is seen", "unpadded", unpadded.Blocks, "_grids", change=UNPADDED, made=True
)
def _(real):
    return property(grids_without_masks)


@fault(
    "positions count on through the list of tokens",
    "unpadded",
    unpadded.Sentences,
    "within",
    change=UNPADDED,
    made=True,
)
def _(real):
    return property(lambda self: F.pad(self.places, (0, self.fill)) % 512)


@fault(
    "no gradient from the last block", "unpadded", unpadded._Collect, "backward", change=UNPADDED
)
def last_block_lost(real, ctx, grad):
    *others, last = real(ctx, grad)
    return (*others, last * 0)


@fault("blocks see what comes later", "unpadded", unpadded.Blocks, "__init__", change=UNPADDED)
def _(real, self, q, k, n, causal):
    return real(self, q, k, n, False)
