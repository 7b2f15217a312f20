"""What is computed in one pass: output map with loss, products of
several layers; and lists of tokens that are filled up.

Compiled layers are not among them: to compile takes minutes. What goes in and comes out of a
compiled layer is that of the same module, whose faults are in the other families.
"""

from typing import Any

from torch import Tensor

from schemas.base import merge
from tests.attacks.planted.fault import BF16, DDP, LARGER, TWO, WIDE, Change, Fault, spread
from tests.attacks.planted.loss_faults import ONE_PASS
from tests.attacks.planted.parallel_faults import forgets_early, own_tokens
from tests.attacks.planted.planting import swap
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import loss as one_pass_loss
from transformer_core.models import objective, unpadded
from transformer_core.models import transformer as transformer_module
from transformer_core.parallel import ddp

FILLED: Change = {"model": {"tokens": {"kind": "unpadded", "blocks": 2, "row_multiple": 16}}}
TOGETHER: Change = {"model": {"memory_products": "together"}}
CHUNKED: Change = {"training": {"loss": {"kind": "chunked", "rows": 7}}}


def without_smoothing(real: Any) -> Any:
    return lambda logits, labels, counted, _, *lift: real(logits, labels, counted, 0.0, *lift)


def larger_gradient(real: Any) -> Any:
    def turn(*args: Any) -> Any:
        losses, gradient = real(*args)
        return losses, gradient * 1.05

    return turn


def map_without_smoothing(real: Any) -> Any:
    """The evenly spread share of the target has no gradient for the output map."""

    def loss(hidden: Tensor, output: Tensor, labels: Tensor, smoothing: float) -> Any:
        counted = hidden.detach().flatten(0, 1)[labels.flatten() != PAD].float()
        share = (output * counted.sum(0)).sum() * (smoothing / len(output))
        return real(hidden, output, labels, smoothing) + share - share.detach()

    return loss


def last_row_lost(real: Any) -> Any:
    def turn(*args: Any) -> Any:
        losses, gradient = real(*args)
        gradient[-1] = 0
        return losses, gradient

    return turn


def first_chunk_only(real: Any) -> Any:
    """Of chunks, only the first reaches the output map."""
    calls: list[int] = []

    def linear(chunk: Tensor, weight: Tensor, *bias: Any) -> Tensor:
        calls.append(1)
        return real(chunk, weight.detach() if len(calls) % 3 else weight, *bias)

    return linear


def without_bias(real: Any) -> Any:
    def together(projections: Any, x: Tensor) -> Any:
        found = real(projections, x)
        bias = next(bias for part, _, bias in projections[0].blocks() if part == "value")
        values = bias.view(1, projections[0].heads, 1, -1)
        return [(k, v - values if i == 0 else v) for i, (k, v) in enumerate(found)]

    return together


def last_layer_detached(real: Any) -> Any:
    def together(projections: Any, x: Tensor) -> Any:
        found = real(projections, x)
        return [*found[:-1], tuple(part.detach() for part in found[-1])]

    return together


def filled_in_front(real: Any) -> Any:
    """The gradient of a list is filled up before its first token."""

    def backward(ctx: Any, *grads: Tensor) -> Any:
        gradient, *rest = real(ctx, *grads)
        return gradient.roll(ctx.fill, 1), *rest

    return backward


def last_tokens(real: Any) -> Any:
    """What stands behind the tokens is taken for the last of them."""

    def batch(self: Any, rows: Tensor) -> Tensor:
        return real(self, rows.roll(-1, 1) if self.fill else rows)

    return batch


def filled_with_tokens(real: Any) -> Any:
    """Rows that fill a list up have a share in the loss of normalizations: they are tokens."""

    def rows(self: Any, x: Tensor) -> Tensor:
        found = real(self, x)
        if self.fill and found.dim() == 2:
            found[:, -self.fill :] = 5
        return found

    return rows


FAULTS = [
    Fault(
        "the loss in one pass smooths nothing under bf16",
        "loss",
        swap(one_pass_loss, "_in_one_loop", without_smoothing),
        merge(BF16, ONE_PASS),
        kind="statistical",
    ),
    Fault(
        "the loss in one pass has a gradient 5 % too large under bf16",
        "loss",
        swap(one_pass_loss, "_in_one_loop", larger_gradient),
        merge(BF16, ONE_PASS),
        kind="statistical",
    ),
    *(
        Fault(
            f"smoothing has no gradient for the output map under bf16, {size}",
            "loss",
            swap(objective, "one_pass_loss_sum", map_without_smoothing),
            merge(BF16, ONE_PASS),
            base=base,
            kind="statistical",
        )
        for size, base in (("small", WIDE), ("larger", LARGER))
    ),
    Fault(
        "the last token of a chunk has no gradient under bf16",
        "loss",
        swap(one_pass_loss, "_in_one_loop", last_row_lost),
        merge(BF16, ONE_PASS),
        kind="statistical",
    ),
    Fault(
        "keys and values of all layers together, the first without a bias",
        "kernels",
        swap(transformer_module, "project_together", without_bias),
        TOGETHER,
    ),
    Fault(
        "keys and values of all layers together, the last without a gradient",
        "kernels",
        swap(transformer_module, "project_together", last_layer_detached),
        TOGETHER,
    ),
    Fault(
        "gradients of a list that is filled up are shifted",
        "unpadded",
        swap(unpadded._Spread, "backward", filled_in_front),
        FILLED,
    ),
    Fault(
        "what fills a list up is taken for a token",
        "unpadded",
        swap(unpadded.Sentences, "batch", last_tokens),
        FILLED,
    ),
    spread(
        "an early micro-batch of real tokens stays on its rank",
        "unpadded",
        swap(ddp.DdpStrategy, "sync_context", forgets_early),
        merge(DDP | TWO, FILLED),
    ),
    spread(
        "every rank divides by its own real tokens",
        "unpadded",
        swap(objective.Objective, "forward", own_tokens),
        merge(DDP, FILLED),
    ),
]
