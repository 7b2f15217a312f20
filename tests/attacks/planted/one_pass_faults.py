"""What is computed in one pass: output map with loss, products of
several layers; and lists of tokens that are filled up.

Compiled layers are not among them: to compile takes minutes. What goes in and comes out of a
compiled layer is that of the same module, whose faults are in the other families.
"""

from typing import Any

from torch import Tensor

from schemas.base import merge
from tests.attacks.planted.fault import BF16, DDP, LARGER, TWO, WIDE, Change, fault, faults_of
from tests.attacks.planted.loss_faults import ONE_PASS
from tests.attacks.planted.parallel_faults import forgets_early, own_tokens
from tests.attacks.planted.planting import swap
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import loss as one_pass_loss
from transformer_core.models import objective, transformer, unpadded
from transformer_core.parallel import ddp

FILLED: Change = {"model": {"tokens": {"kind": "unpadded", "blocks": 2, "row_multiple": 16}}}
TOGETHER: Change = {"model": {"memory_products": "together"}}
IN_ONE_PASS: dict[str, Any] = {"change": merge(BF16, ONE_PASS), "kind": "statistical"}


in_one_loop = faults_of("loss", one_pass_loss, "_in_one_loop", **IN_ONE_PASS)


together = faults_of("kernels", transformer, "project_together", change=TOGETHER)


filled = faults_of("unpadded", change=FILLED)


def map_without_smoothing(real: Any) -> Any:
    """The evenly spread share of the target has no gradient for the output map."""

    def loss(hidden: Tensor, output: Tensor, labels: Tensor, smoothing: float) -> Any:
        counted = hidden.detach().flatten(0, 1)[labels.flatten() != PAD].float()
        share = (output * counted.sum(0)).sum() * (smoothing / len(output))
        return real(hidden, output, labels, smoothing) + share - share.detach()

    return loss


@in_one_loop("the loss in one pass smooths nothing under bf16")
def without_smoothing(real, logits, labels, counted, _, *lift):
    return real(logits, labels, counted, 0.0, *lift)


@in_one_loop("the loss in one pass has a gradient 5 % too large under bf16")
def larger_gradient(real, *args):
    losses, gradient = real(*args)
    return losses, gradient * 1.05


for size, base in (("small", WIDE), ("larger", LARGER)):
    fault(
        f"smoothing has no gradient for the output map under bf16, {size}",
        "loss",
        swap(objective, "one_pass_loss_sum", map_without_smoothing),
        base=base,
        **IN_ONE_PASS,
    )


@in_one_loop("the last token of a chunk has no gradient under bf16")
def last_row_lost(real, *args):
    losses, gradient = real(*args)
    gradient[-1] = 0
    return losses, gradient


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


filled(
    "an early micro-batch of real tokens stays on its rank",
    swap(ddp.DdpStrategy, "sync_context", forgets_early),
    change=merge(DDP | TWO, FILLED),
    ranks=2,
)
filled(
    "every rank divides by its own real tokens",
    swap(objective.Objective, "forward", own_tokens),
    change=merge(DDP, FILLED),
    ranks=2,
)
