"""Faults that show only with dropout on, late in a run, at the end of an epoch or after resuming."""

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as recomputation
from torch import Tensor

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.dropout_faults import unscaled
from tests.attacks.planted.fault import faults_of
from tests.attacks.planted.planting import before_update, calling, put, several, swap
from transformer_core.certify import short_run_worker
from transformer_core.data.batching.feeding import Feed
from transformer_core.models import attention, compiled_loops, dropout
from transformer_core.training import evaluation, loop, precision
from transformer_core.training.history import History

NOAM = {"schedule": {"kind": "noam", "warmup": 400}, "steps": 2_000}


late = faults_of("late", **changes.DROPPING)


def no_decoder_gradient() -> Any:
    third = itertools.cycle([False, False, True])

    def change(parameters: list[Any]) -> None:
        if next(third):
            for p in parameters[len(parameters) // 2 :]:
                if p.grad is not None:
                    p.grad.zero_()

    return before_update(change)()


def last_of(feed: Any, held: Any) -> Any:
    """Rank 0's micro-batches of a batch."""
    count = len(feed._own)
    given = (feed.store, feed._batching, feed._seed, 0, feed._parts // count, count, feed._device)
    return next(Feed(*given).batches(held.epoch, held.index)).micro_batches


def clipping_that_stops() -> Any:
    step = 0

    def learning_rate(real: Any, schedule: Any, number: int, *more: Any) -> float:
        nonlocal step
        step = number
        return real(schedule, number, *more)

    def update(real: Any, self: Any, optimizer: Any, parameters: Any, clip: float) -> Any:
        return real(self, optimizer, parameters, 0.0 if step > 12 else clip)

    counted = swap(loop, "learning_rate", calling(learning_rate))
    return several(counted, swap(precision.Precision, "step", calling(update)))()


@late("both ranks draw the same masks", short_run_worker, "assemble", change=changes.DDP, ranks=2)
def seeded_alike(real, spec, *given, **named):
    setup = real(spec, *given, **named)
    torch.manual_seed(spec.training.seed)
    return setup


@late(
    "two of four ranks draw the same masks",
    short_run_worker,
    "assemble",
    change=changes.DDP_OF_FOUR,
    ranks=4,
)
def two_seeded_alike(real, spec, process, *given, **named):
    setup = real(spec, process, *given, **named)
    torch.manual_seed(spec.training.seed + min(process.rank, 2))
    return setup


@late("rank 1 stays in evaluation mode", evaluation, "validation_loss", change=changes.DDP, ranks=2)
def stays(real, setup, *batches):
    loss = real(setup, *batches)
    setup.model.train(setup.process.rank != 1)
    return loss


wrong_share = "rank 1 reads the share of rank 0 at the end of an epoch"


@late(wrong_share, Feed, "_make", change=changes.DDP, ranks=2)
def share_of_another(real, self, *place):
    items = real(self, *place)
    held = next(items)
    for item in items:
        last = item.epoch != held.epoch
        yield replace(held, micro_batches=last_of(self, held)) if last and self._own.start else held
        held = item


epoch_again = property(lambda self: (self.steps[-1]["epoch"] if self.steps else 0, 0))
late("a resumed run starts its epoch over", put(History, "position", epoch_again))


@late("a validation that drops", evaluation, "validation_loss")
def still_training(real, setup, batches=None):
    with mock.patch.object(type(setup.model), "eval", lambda self: self):
        return real(setup, batches)


@late(
    "the first layer computed once more has other masks",
    recomputation,
    "checkpoint",
    change=changes.CHECKPOINT,
    made=True,
)
def other_masks_in_the_first_layer(real):
    # Of two layers of encoder and decoder each.
    same = itertools.cycle([False, True, True, True])
    return lambda *given, **named: real(*given, preserve_rng_state=next(same), **named)


@late(
    "the backward pass of a fused softmax leaves out rows",
    compiled_loops,
    "gradient_of",
    change={"model": {"attention": {"kind": "fused_softmax"}}},
)
def without_some_rows(real, grad, softmax, seed, p):
    found: Tensor = real(grad, softmax, seed, p)
    if p > 1e-6:
        found[..., -1:, :] = 0.0
    return found


fast = swap(dropout.DROPOUTS, "shared_draws", calling(unscaled))
late("the fast dropout does not scale what it keeps", fast, **changes.IN_BF16)
in_plain_attention = faults_of(
    "late", attention.ATTENTIONS, "reference", change=changes.PLAIN_ATTENTION, **changes.DROPPING
)


@in_plain_attention("scores are 2 % too large where dropout is on")
def larger_scores(real, q, k, v, mask, causal, p, *more):
    return real(q * 1.02 if p > 1e-6 else q, k, v, mask, causal, p, *more)


@in_plain_attention("two heads share a mask")
def shared_by_halves(real, q, k, v, mask, causal, p, drop):
    """Heads h and h + H/2 share a mask."""

    def dropped(x: Tensor, p: float) -> Tensor:
        half = drop(torch.ones_like(x[:, : x.size(1) // 2]), p)
        return x * torch.cat([half, half], 1)

    return real(q, k, v, mask, causal, p, dropped)


@late(
    "a step that overflows is applied with finite numbers",
    precision.ScaledAutocast,
    "update",
    **changes.IN_FP16,
)
def applied_all_the_same(real, self, optimizer, norm):
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.nan_to_num_(0.0, 1.0, -1.0)
    optimizer.step()
    self.scaler.update(self.scaler.get_scale())


late("half of the model gets no gradient every third step", no_decoder_gradient, **changes.IN_BF16)
late(
    "clipping stops after some steps",
    clipping_that_stops,
    base=merge(changes.WIDE, {"training": {"clip_norm": 0.1}}),
    late={"schedule": {"kind": "constant", "peak": 3e-3}, "steps": 100},
)


lagging = calling(lambda real, s, n, *more: real(s, max(1, n - 1), *more))
late("the learning rate lags by a step", swap(loop, "learning_rate", lagging), late=NOAM)
