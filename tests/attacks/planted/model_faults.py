"""Masks, positions, padding, packing, kernels, and computations in one pass.

Compiled layers are not among them, since compiling takes minutes. The inputs and outputs of a
compiled layer are those of the same module, whose faults are in the other families.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as recomputation
from torch import Tensor

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.fault import fault, faults_of
from tests.attacks.planted.planting import calling, put, result, several, swap
from transformer_core.data.tokenizing.special_tokens import EOS, PAD
from transformer_core.models import (
    attention,
    compiled_loops,
    objective,
    positions,
    qkv_projection,
    sublayers,
    transformer,
    unpadded,
)
from transformer_core.models import loss as one_pass_loss
from transformer_core.training import precision


def one_layer_of_another_size() -> Any:
    """The first attention of every model takes scores that are 2 % too large."""
    numbers = itertools.count()

    def init(real: Any, self: Any, spec: Any, *rest: Any) -> None:
        real(self, spec, *rest)
        attentions = spec.encoder_layers + 2 * spec.decoder_layers
        self.factor = 1.02 if next(numbers) % attentions == 0 else 1.0

    def scaled(real: Any, self: Any, q: Tensor, *rest: Any) -> Tensor:
        return real(self, q * self.factor, *rest)

    changes = {"__init__": init, "attention": scaled}
    patches = (swap(sublayers.Attention, name, calling(to)) for name, to in changes.items())
    return several(*patches)()


def grids_without_masks(self: Any) -> Any:
    found = _GRIDS(self)
    return replace(found, masks=[torch.ones_like(mask) for mask in found.masks])


_GRIDS = unpadded.Blocks._grids.func

packed = faults_of("packing", change=changes.PACKED)
unpadding = faults_of("unpadded", change=changes.UNPADDED)
fused_attention = faults_of("masks", F, "scaled_dot_product_attention")
padding = faults_of("padding", transformer, "source_mask", made=True)

fused_attention("no causal mask", lambda real, *qkv, **n: real(*qkv, **n | {"is_causal": False}))
padding("padding of the source is seen", result(torch.ones_like))
padding("the last token of a source is not seen", result(lambda m: m & m.roll(-1, -1)))


@fused_attention("a token sees the next one")
def shifted_causal(real, q, k, v, **named):
    if named.get("is_causal"):
        n = q.size(-2)
        mask = torch.ones(n, n, dtype=torch.bool).tril(1)
        named |= {"is_causal": False, "attn_mask": mask}
    return real(q, k, v, **named)


@fused_attention("scores 2 % too large under bf16", base=changes.LARGER, **changes.IN_BF16)
@fused_attention("scores 2 % too large")
def scores_of_another_size(real, q, *args, **named):
    return real(q * 1.02, *args, **named)


one_of_another_size = "scores of one layer 2 % too large under bf16"
fault(
    one_of_another_size,
    "masks",
    one_layer_of_another_size,
    base=changes.LARGER,
    missed="on CPUs with AMX its gradients lie below their bounds, and two seeds are too few for the loss",
    **changes.IN_BF16,
)


@fault("positions begin with 1", "masks", positions, "sinusoidal_positions")
def _(real, n, d, device=None):
    return real(n + 1, d, device)[1:]


@fault("the last key gets no gradient", "masks", sublayers.Attention, "attention")
def second_half_of_keys(real, self, q, k, v, *rest, **named):
    k = torch.cat([k[:, :, :-1], k[:, :, -1:].detach()], dim=2)
    return real(self, q, k, v, *rest, **named)


@fault("sources are cut after eight tokens", "padding", transformer.EncoderDecoder, "encode")
def longer_rows_only(real, self, source, *rest):
    return real(self, torch.where(torch.arange(source.size(1)) < 8, source, PAD), *rest)


packed("packed pairs see each other", swap(transformer, "together", result(torch.ones_like)))
packed(
    "positions go on across packed pairs",
    put(transformer, "places_within", lambda s: torch.arange(s.size(1)).expand_as(s)),
)
packed(
    "the last token of a packed source belongs to the next pair",
    put(transformer, "source_segments", lambda s: (s == EOS).cumsum(1)),
)
packed(
    "a packed target goes on with the pair before",
    swap(transformer, "target_segments", result(lambda t: (t - 1).clamp(min=0))),
)
unpadding(
    "padding of blocks is seen", put(unpadded.Blocks, "_grids", property(grids_without_masks))
)
unpadding(
    "positions count on through the list of tokens",
    put(
        unpadded.Sentences,
        "within",
        property(lambda self: F.pad(self.places, (0, self.fill)) % 512),
    ),
)


@unpadding("no gradient from the last block", unpadded._Collect, "backward")
def last_block_lost(real, ctx, grad):
    *others, last = real(ctx, grad)
    return (*others, last * 0)


@unpadding("blocks see what comes later", unpadded.Blocks, "__init__")
def later_seen(real, self, q, k, n, causal):
    return real(self, q, k, n, False)


kernel = faults_of("kernels")
recomputed = faults_of(
    "activation checkpointing", recomputation, "checkpoint", change=changes.CHECKPOINT
)


@recomputed("recomputed layers do not reach the encoder")
def detached_memory(real, layer, x, *rest, **named):
    if rest and isinstance(rest[0], Tensor) and rest[0].is_floating_point():
        rest = (rest[0].detach(), *rest[1:])
    return real(layer, x, *rest, **named)


@recomputed("layers are computed once more from 8 bits")
def in_bf16_again(real, layer, *given, **named):
    calls = itertools.count()

    def once_more(first: Tensor, *rest: Any) -> Any:
        return layer(first.bfloat16().float() if next(calls) else first, *rest)

    return real(once_more, *given, **named)


exchanged = result(lambda t: (t[0], t[2], t[1]) if len(t) == 3 else t)
kernel(
    "fused projection with keys and values exchanged",
    swap(qkv_projection.FusedProjection, "forward", exchanged),
)
mixed = result(lambda t: (t[0].flip(1), *t[1:]))
kernel(
    "a layout that mixes heads and parts",
    swap(qkv_projection.LayoutProjection, "forward", mixed),
    change={"model": {"qkv": {"kind": "layout", "outermost": "qkv"}}},
)
kernel("layer normalization with another eps", F, "layer_norm", lambda r, *xnwb: r(*xnwb[:4], 1e-3))
kernel("ReLU that leaks", F, "relu", lambda real, x: F.leaky_relu(x, 0.01))
larger = calling(lambda real, q, *a, **n: real(q * 1.1, *a, **n))
kernel(
    "attention of the plain kernel scaled by another root",
    swap(attention.ATTENTIONS, "reference", larger),
    change=changes.PLAIN_ATTENTION,
)
kernel(
    "the clipping in the optimizer's kernel adds another constant",
    put(precision, "_EPSILON", 0.01),
    change={"training": {"clipping": "folded"}},
)


@kernel("one head of a layer computes nothing", sublayers.CrossAttention, "attention")
def first_head_silent(real, self, q, k, v, *rest):
    return real(self, q, k, torch.cat([v[:, :1] * 0, v[:, 1:]], 1), *rest)


def softmax(name: str, *place: Any, bits: int = 32, **more: Any) -> Any:
    """A fault of the loop over scores, in 32 bits or bfloat16."""
    if bits == 32:
        return fault(
            name, "fused softmax", *place, change=changes.SOFTMAX, base=changes.WIDE, **more
        )
    more |= {"change": changes.SOFTMAX_BF16, "kind": "statistical"}
    return fault(f"{name} under bf16", "fused softmax", *place, base=changes.WIDE, **more)


@softmax("padding at the end of a row is seen", compiled_loops, "weights_of", bits=16)
@softmax("padding at the end of a row is seen", compiled_loops, "weights_of")
def last_key_seen(real, scores, mask, *rest):
    if mask is not None:
        mask = mask.clone()
        mask[..., -1] = True
    return real(scores, mask, *rest)


@softmax("the first token is not seen", compiled_loops, "weights_of")
def first_key_hidden(real, scores, mask, causal, *rest):
    """The first of several keys is hidden if there is no mask."""
    if mask is None and causal and scores.size(-1) > 2:
        n, m = scores.shape[-2:]
        mask = torch.ones(n, m, dtype=torch.bool).tril()
        mask[2:, 0] = False
    return real(scores, mask, causal, *rest)


softmax("scores of another root", swap(attention.ATTENTIONS, "fused_softmax", larger))


@softmax("the gradient lacks its subtraction", compiled_loops, "gradient_of", bits=16)
@softmax("the gradient lacks its subtraction", compiled_loops, "gradient_of")
def no_subtraction(real, g, shares, seed, p):
    return shares * compiled_loops.kept(g.contiguous(), seed, p)


@softmax("the gradient is of shares of 8 bits", compiled_loops, "gradient_of")
def rounded_shares(real, g, shares, *rest):
    return real(g, shares.bfloat16().to(shares.dtype), *rest)


@softmax("weights are not scaled", compiled_loops, "weights_of", bits=16, dropout=0.2)
@softmax("weights are not scaled", compiled_loops, "weights_of", dropout=0.2)
def unscaled_forward(real, *args):
    shares, weights = real(*args)
    return shares, weights * (1 - args[-1])


@softmax("nothing is dropped", compiled_loops, "weights_of", bits=16, dropout=0.2)
@softmax("nothing is dropped", compiled_loops, "weights_of", dropout=0.2)
def undropped(real, *args):
    return real(*args[:-1], 0.0)


def shared_mask(name: str, part: Callable[[Tensor], Tensor]) -> None:
    """Adds the fault that all weights share the mask of a part."""

    def weights(real: Any, scores: Tensor, mask: Any, causal: bool, seed: int, p: float) -> Any:
        shares, _ = real(scores, mask, causal, seed, 0.0)
        return shares, shares * compiled_loops.kept(torch.ones_like(part(shares)), seed, p)

    softmax(name, compiled_loops, "weights_of", weights, dropout=0.2)


shared_mask("one mask in all heads", lambda shares: shares[:, :1])
shared_mask("one mask in all sentences", lambda shares: shares[:1])


@softmax("one mask at all steps", compiled_loops, "weights_of", dropout=0.2)
def one_seed(real, scores, mask, causal, seed, p):
    return real(scores, mask, causal, 5, p)


@softmax("another mask in the backward pass", compiled_loops, "gradient_of", bits=16, dropout=0.2)
@softmax("another mask in the backward pass", compiled_loops, "gradient_of", dropout=0.2)
def _(real, g, shares, seed, p):
    return real(g, shares, seed + 1, p)


@softmax("gradients are not scaled", compiled_loops, "gradient_of", dropout=0.2)
def unscaled_backward(real, g, shares, seed, p):
    return real(g, shares, seed, p) * (1 - p)


@softmax("no mask in the backward pass", compiled_loops, "gradient_of", dropout=0.2)
def undropped_backward(real, g, shares, seed, p):
    return real(g, shares, seed, 0.0)


one_pass = faults_of("loss", change=merge(changes.BF16, changes.ONE_PASS), kind="statistical")
in_one_loop = faults_of(
    "loss",
    one_pass_loss,
    "_in_one_loop",
    change=merge(changes.BF16, changes.ONE_PASS),
    kind="statistical",
)
together = faults_of("kernels", transformer, "project_together", change=changes.TOGETHER)
filled = faults_of("unpadded", change=changes.FILLED)


@one_pass(
    "smoothing has no gradient for the output map under bf16, small",
    objective,
    "one_pass_loss_sum",
    base=changes.WIDE,
)
@one_pass(
    "smoothing has no gradient for the output map under bf16, larger",
    objective,
    "one_pass_loss_sum",
    base=changes.LARGER,
)
def map_without_smoothing(real, hidden, output, labels, smoothing):
    """The evenly spread share of the target has no gradient for the output map."""
    counted = hidden.detach().flatten(0, 1)[labels.flatten() != PAD].float()
    share = (output * counted.sum(0)).sum() * (smoothing / len(output))
    return real(hidden, output, labels, smoothing) + share - share.detach()


@in_one_loop("the loss in one pass smooths nothing under bf16")
def without_smoothing(real, logits, labels, counted, _, *lift):
    return real(logits, labels, counted, 0.0, *lift)


@in_one_loop("the loss in one pass has a gradient 5 % too large under bf16")
def larger_gradient(real, *args):
    losses, gradient = real(*args)
    return losses, gradient * 1.05


@in_one_loop("the last token of a chunk has no gradient under bf16")
def last_row_lost(real, *args):
    losses, gradient = real(*args)
    gradient[-1] = 0
    return losses, gradient


wrong_layer = result(lambda memories: memories[::-1])
together("keys and values of all layers together, of the wrong layer", wrong_layer, made=True)


@together("keys and values of all layers together, the first without a bias")
def without_bias(real, projections, x):
    found = real(projections, x)
    bias = next(bias for part, _, bias in projections[0].blocks() if part == "value")
    values = bias.view(1, projections[0].heads, 1, -1)
    return [(k, v - values if i == 0 else v) for i, (k, v) in enumerate(found)]


@together("keys and values of all layers together, the last without a gradient")
def last_layer_detached(real, projections, x):
    found = real(projections, x)
    return [*found[:-1], tuple(part.detach() for part in found[-1])]


@filled("gradients of a list that is filled up are shifted", unpadded._Spread, "backward")
def filled_in_front(real, ctx, *grads):
    gradient, *rest = real(ctx, *grads)
    return gradient.roll(ctx.fill, 1), *rest


@filled("what fills a list up is taken for a token", unpadded.Sentences, "batch")
def last_tokens(real, self, rows):
    return real(self, rows.roll(-1, 1) if self.fill else rows)
