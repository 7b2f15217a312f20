"""Mistakes that training scripts really have: in optimizers, schedules, masks, losses and resuming."""

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.fault import dropping, fault, faults_of, in_ddp
from tests.attacks.planted.late_faults import NOAM
from tests.attacks.planted.planting import (
    batches,
    before_update,
    calling,
    put,
    several,
    swap,
)
from tests.attacks.planted.training_faults import (
    accumulated,
    decaying,
    other_arguments,
    other_step,
    rate,
    resumed,
    tied,
    vectors_apart,
    whole_loss,
)
from transformer_core.certify import short_run_worker
from transformer_core.data.batching import feeding
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import transformer
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.parallel import ddp
from transformer_core.training import assemble, checkpoint, evaluation, loop, precision

ZERO = merge(changes.DDP, {"training": {"optimizer": {"kind": "adamw_zero"}}})


@fault("every epoch has the order of the first", "data order", feeding, "plan_epoch")
def first_epoch(real, store, batching, seed, epoch=0, *rest):
    return real(store, batching, seed, 0, *rest)


@accumulated("the mean is over padding, too", batches)
def over_padding(batch):
    return replace(batch, target_tokens=sum(m.target_output.numel() for m in batch.micro_batches))


@accumulated("the mean is over the tokens of the last micro-batch", batches)
def tokens_of_the_last(batch):
    count = int((batch.micro_batches[-1].target_output != PAD).sum())
    return replace(batch, target_tokens=count * len(batch.micro_batches))


kept = put(torch.optim.Optimizer, "zero_grad", lambda *_, **__: None)
fault("gradients add up over steps", "accumulation", kept)


def gradients_of_the_step_before() -> Any:
    before: list[Tensor] = []

    def change(parameters: list[Any]) -> None:
        now = [p.grad.clone() for p in parameters]
        for p, old in zip(parameters, before or now, strict=True):
            p.grad.copy_(old)
        before[:] = now

    return before_update(change)()


fault("gradients are those of the step before", "optimizer", gradients_of_the_step_before)


@fault("vectors learn twice as fast", "optimizer", assemble, "build_optimizer")
def faster_vectors(real, spec, module, *more):
    return vectors_apart(real(spec, module, *more), rate_factor=2.0)


@fault("no bias correction after the first step", "optimizer", precision.Precision, "update")
def without_correction(real, self, optimizer, norm):
    for state in optimizer.state.values():
        state["step"].fill_(1e6)
    real(self, optimizer, norm)


other_arguments("the largest second moment counts", amsgrad=True)


@decaying("the new weights decay, not the old ones")
def decay_afterwards(real, spec, parameters, *more):
    made = real(spec.model_copy(update={"weight_decay": 0.0}), parameters, *more)
    step = made.step

    @torch.no_grad()
    def then_decay(*given: Any) -> None:
        step(*given)
        for group in made.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * spec.weight_decay)

    made.step = then_decay
    return made


in_norm = faults_of("clipping", precision, "_norm")
in_norm("the norm leaves out the embedding", lambda real, found: real(found[1:]))
in_norm("the norm counts tied weights twice", lambda real, found: real([found[0], *found]))
in_norm(
    "clipped by the largest element",
    lambda real, found: torch.stack([x.abs().max() for x in found]).max(),
)


@in_ddp("ranks clip before they average", ddp.DdpStrategy, "reduce_gradients", change=changes.LATE)
def clipped_apart(real, self):
    nn.utils.clip_grad_norm_(self.replica.parameters(), 0.5)
    return real(self)


@in_ddp("rank 1 has another rate", loop, "learning_rate")
def own_rate(real, *given):
    return real(*given) * (1 + 1e-3 * dist.get_rank())


@in_ddp("rank 1 multiplies in bf16", precision.Precision, "autocast")
def in_bf16_on_rank_1(real, self):
    return torch.autocast("cpu", torch.bfloat16) if dist.get_rank() == 1 else real(self)


@whole_loss("rank 1 smooths labels half as much", ranks=2, change=changes.DDP)
def less_smooth_on_rank_1(real, x, y, s=0.0):
    return real(x, y, s / 2 if dist.get_rank() == 1 else s)


@whole_loss("smoothing leaves out the label itself")
def among_the_others(real, x, y, s=0.0):
    return real(x, y, s * x.size(-1) / (x.size(-1) - 1))


@whole_loss(
    "the loss is computed in bf16",
    missed="with few tokens, a loss in 8 bits is within the error of logits in 8 bits",
    **changes.IN_BF16,
)
def loss_in_bf16(real, x, y, s=0.0):
    labels, low = y.flatten(), x.flatten(0, 1).bfloat16()
    with torch.autocast("cpu", enabled=False):
        losses = F.cross_entropy(low, labels, label_smoothing=s, ignore_index=PAD, reduction="none")
    return losses.float().sum()


@resumed("resumed with the moments of another tensor", checkpoint, "_load_optimizer")
def exchanged(real, setup, *given):
    real(setup, *given)
    states = setup.optimizer.state
    first, second = [
        p for p in setup.model.parameters() if p.dim() == 2 and p.size(0) == p.size(1)
    ][:2]
    states[first], states[second] = states[second], states[first]


@fault(
    "the loss scale stays after an overflow",
    "precision",
    precision.ScaledAutocast,
    "__init__",
    kind="statistical",
    base=changes.WIDE,
    change=changes.FP16,
    dropout=0.2,
)
def scale_never_falls(real, self, *given):
    real(self, *given)
    self.scaler.set_backoff_factor(1.0)


def old_output_map() -> Any:
    last: list[Tensor] = []

    def forward(real: Any, self: Any, source: Any, target: Any, **named: Any) -> Any:
        def head(hidden: Tensor, weight: Tensor) -> Tensor:
            old = last[0] if last else weight.detach().clone()
            last[:] = [weight.detach().clone()]
            return F.linear(hidden, weight + (old - weight.detach()))

        return real(self, source, target, **named | {"head": head})

    return swap(EncoderDecoder, "forward", calling(forward))()


tied("the output map is that of the step before", old_output_map)


@fault("the padding of another source is hidden", "masks", transformer, "source_mask", made=True)
def mask_of_another(real):
    return lambda source: real(source.roll(1, 0))


other_step("the schedule counts micro-batches", "cosine", lambda n: min(2 * n, 6))
rate(
    "the decay ends a step early",
    lambda real, s, n, total, *rest: real(s, min(n, total - 1), total - 1, *rest),
    base=changes.schedule("cosine"),
)


@fault(
    "rank 1 keeps its share of the updates",
    "DDP",
    ZeroRedundancyOptimizer,
    "_sync_params",
    ranks=2,
    change=ZERO,
)
def not_sent(real, self):
    if dist.get_rank() == 0:
        return


@fault("validation is a mean of means", "loss", evaluation, "validation_loss")
def mean_of_means(real, setup, batches=None):
    found = list(evaluation_batches(setup.validation_store) if batches is None else batches)
    return sum(real(setup, [each]) for each in found) / len(found)


@dropping(
    "every epoch draws the masks of the first",
    batches,
    missed="no two compared steps have the same place in their epochs",
)
def masks_of_the_place(batch):
    torch.manual_seed(batch.index)
    return batch


def rates_since_resuming() -> Any:
    steps = itertools.count()

    def train(real: Any, *given: Any, **named: Any) -> Any:
        nonlocal steps
        steps = itertools.count(1)
        return real(*given, **named)

    def learning_rate(real: Any, schedule: Any, number: int, *more: Any) -> float:
        return real(schedule, next(steps), *more)

    trained = swap(short_run_worker, "train", calling(train))
    return several(trained, swap(loop, "learning_rate", calling(learning_rate)))()


dropping("after resuming, the schedule begins again", rates_since_resuming, late=NOAM)

on_two = faults_of("resuming", ranks=2, **changes.DROPPING | {"change": changes.DDP})


@on_two("resumed with the random numbers of rank 0", checkpoint, "_load_random_state")
def of_rank_0(real, *given):
    real(*given)
    state = torch.get_rng_state()
    dist.broadcast(state, 0)
    torch.set_rng_state(state)


@on_two(
    "rank 1 resumes without its share of the moments", checkpoint, "_load_optimizer", change=ZERO
)
def without_moments_on_rank_1(real, setup, *given):
    real(setup, *given)
    for state in setup.optimizer.state.values():
        if dist.get_rank() == 1:
            state["exp_avg"].zero_()


@on_two("rank 1 drops in validation", evaluation, "validation_loss")
def drops_on_rank_1(real, setup, batches=None):
    if dist.get_rank() == 0:
        return real(setup, batches)
    with mock.patch.object(type(setup.model), "eval", lambda self: self):
        return real(setup, batches)


def old_norm() -> Any:
    last: list[Tensor] = []

    def scale_down(real: Any, gradients: Any, norm: Tensor, limit: float) -> None:
        real(gradients, last[0] if last else norm, limit)
        last[:] = [norm]

    return swap(precision, "scale_down", calling(scale_down))()


fault("clipped by the norm of the step before", "clipping", old_norm)
