"""Masks, positions, padding, packing, and computing without padding."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attacks.planted.fault import IN_BF16, LARGER, PACKED, UNPADDED, fault, faults_of
from tests.attacks.planted.planting import Patch, swap
from transformer_core.data.tokenizing.special_tokens import EOS
from transformer_core.models import positions, sublayers, transformer, unpadded


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


packed = faults_of("packing", change=PACKED)
unpadding = faults_of("unpadded", change=UNPADDED)
fused_attention = faults_of("masks", F, "scaled_dot_product_attention")


fault("no causal mask", "masks", attention_with(is_causal=False))


@fused_attention("a token sees the next one")
def shifted_causal(real, q, k, v, **named):
    if named.get("is_causal"):
        n = q.size(-2)
        mask = torch.ones(n, n, dtype=torch.bool).tril(1)
        named |= {"is_causal": False, "attn_mask": mask}
    return real(q, k, v, **named)


fault(
    "padding of the source is seen",
    "padding",
    swap(transformer, "source_mask", mask_of(torch.ones_like)),
)
fault(
    "the last token of a source is not seen",
    "padding",
    swap(transformer, "source_mask", mask_of(lambda m: m & m.roll(-1, -1))),
)


@fused_attention("scores 2 % too large under bf16", base=LARGER, **IN_BF16)
@fused_attention("scores 2 % too large")
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


packed("packed pairs see each other", swap(transformer, "together", mask_of(torch.ones_like)))


@packed("positions go on across packed pairs", transformer, "places_within")
def _(real, s):
    return torch.arange(s.size(1)).expand_as(s)


@packed(
    "the last token of a packed source belongs to the next pair", transformer, "source_segments"
)
def _(real, s):
    return (s == EOS).cumsum(1)


@packed("a packed target goes on with the pair before", transformer, "target_segments")
def _(real, t):
    return (real(t) - 1).clamp(min=0)


@unpadding("padding of blocks is seen", unpadded.Blocks, "_grids", made=True)
def _(real):
    return property(grids_without_masks)


@unpadding("positions count on through the list of tokens", unpadded.Sentences, "within", made=True)
def _(real):
    return property(lambda self: F.pad(self.places, (0, self.fill)) % 512)


@unpadding("no gradient from the last block", unpadded._Collect, "backward")
def last_block_lost(real, ctx, grad):
    *others, last = real(ctx, grad)
    return (*others, last * 0)


@unpadding("blocks see what comes later", unpadded.Blocks, "__init__")
def _(real, self, q, k, n, causal):
    return real(self, q, k, n, False)
