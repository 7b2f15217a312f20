"""Faults that show only with dropout on, late in a run, at the end of an epoch or after resuming."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as recomputation
from torch import Tensor

from tests.attacks.planted.fault import (
    CHECKPOINT,
    DDP,
    DROPPING,
    IN_BF16,
    IN_FP16,
    PLAIN_ATTENTION,
    faults_of,
)
from tests.attacks.planted.planting import Patch, before_update, swap
from transformer_core.certify import short_run_worker
from transformer_core.data.batching.feeding import Feed
from transformer_core.models import attention, compiled_loops, dropout
from transformer_core.training import evaluation, loop, precision
from transformer_core.training.history import History

NOAM = {"schedule": {"kind": "noam", "warmup": 400}, "steps": 2_000}


late = faults_of("late", **DROPPING)


def no_decoder_gradient() -> Patch:
    calls = [0]

    def change(parameters: list[Any]) -> None:
        calls[0] += 1
        if calls[0] % 3 == 0:
            for p in parameters[len(parameters) // 2 :]:
                if p.grad is not None:
                    p.grad.zero_()

    return before_update(change)


def share_of_another(real: Any) -> Any:
    """Rank 1 reads rank 0's share of the last batch of an epoch."""

    def make(self: Any, epoch: int, batch: int) -> Iterator[Any]:
        own = self._own
        items = real(self, epoch, batch)
        held = next(items)
        for item in items:
            if item.epoch != held.epoch and own.start:
                self._own = range(len(own))
                (yield replace(held, micro_batches=self._last_of(held)))
                self._own = own
            else:
                yield held
            held = item

    return make


def _last_of(self: Any, held: Any) -> Any:
    other = Feed(
        self.store,
        self._batching,
        self._seed,
        0,
        self._parts // len(self._own),
        len(self._own),
        self._device,
    )
    return next(other.batches(held.epoch, held.index)).micro_batches


@contextlib.contextmanager
def wrong_share() -> Iterator[None]:
    with (
        mock.patch.object(Feed, "_last_of", _last_of, create=True),
        swap(Feed, "_make", share_of_another)(),
    ):
        yield


@contextlib.contextmanager
def clipping_that_stops() -> Iterator[None]:
    step = [0]
    real_rate, real_step = loop.learning_rate, precision.Precision.step

    def learning_rate(schedule: Any, number: int, *more: Any) -> float:
        step[0] = number
        return real_rate(schedule, number, *more)

    def update(self: Any, optimizer: Any, parameters: Any, clip: float) -> Any:
        return real_step(self, optimizer, parameters, 0.0 if step[0] > 12 else clip)

    with (
        mock.patch.object(loop, "learning_rate", learning_rate),
        mock.patch.object(precision.Precision, "step", update),
    ):
        yield


@late("both ranks draw the same masks", short_run_worker, "assemble", change=DDP, ranks=2)
def seeded_alike(real, spec, *given, **named):
    setup = real(spec, *given, **named)
    torch.manual_seed(spec.training.seed)
    return setup


late("rank 1 reads the share of rank 0 at the end of an epoch", wrong_share, change=DDP, ranks=2)
late(
    "a resumed run starts its epoch over",
    lambda: mock.patch.object(
        History,
        "position",
        property(lambda self: (self.steps[-1]["epoch"] if self.steps else 0, 0)),
    ),
)


@late("a validation that drops", evaluation, "validation_loss", made=True)
def still_training(real):
    def validation_loss(setup: Any, batches: Any = None) -> float:
        with mock.patch.object(type(setup.model), "eval", lambda self: self):
            return real(setup, batches)

    real = evaluation.validation_loss
    return validation_loss


@late(
    "the first layer computed once more has other masks",
    recomputation,
    "checkpoint",
    change=CHECKPOINT,
    made=True,
)
def other_masks_in_the_first_layer(real):
    calls = [0]

    def checkpoint(layer: Any, *inputs: Any, **named: Any) -> Any:
        calls[0] += 1
        first = calls[0] % 4 == 1  # of two layers of encoder and decoder each
        return real(layer, *inputs, preserve_rng_state=not first, **named)

    return checkpoint


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


@late("the fast dropout does not scale what it keeps", dropout.DROPOUTS, "shared_draws", **IN_BF16)
def _(real, x, p):
    return real(x, p) * (1 - p)


@late(
    "scores are 2 % too large where dropout is on",
    attention.ATTENTIONS,
    "reference",
    change=PLAIN_ATTENTION,
)
def larger_scores(real, q, k, v, mask, causal, p, *more):
    return real(q * 1.02 if p > 1e-6 else q, k, v, mask, causal, p, *more)


@late("two heads share a mask", attention.ATTENTIONS, "reference", change=PLAIN_ATTENTION)
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
    **IN_FP16,
)
def applied_all_the_same(real, self, optimizer, norm):
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.nan_to_num_(0.0, 1.0, -1.0)
    optimizer.step()
    self.scaler.update(self.scaler.get_scale())


late("half of the model gets no gradient every third step", no_decoder_gradient(), **IN_BF16)
late(
    "clipping stops after some steps",
    clipping_that_stops,
    change={"training": {"clip_norm": 0.1}},
    late={"schedule": {"kind": "constant", "peak": 3e-3}, "steps": 100},
)


@late("the learning rate lags by a step", loop, "learning_rate", late=NOAM)
def _(real, s, n, *more):
    return real(s, max(1, n - 1), *more)
