"""Faults that hit some tokens, heads, tensors, sizes or steps only."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.attacks.planted.fault import (
    IN_FP16,
    RING,
    dropping,
    fault,
    faults_of,
    in_central,
    in_fsdp,
    in_hooks,
    schedule,
)
from tests.attacks.planted.model_faults import recomputed
from tests.attacks.planted.planting import around_step, before_update, calling, each_micro, swap
from tests.attacks.planted.training_faults import clipping
from transformer_core.data.tokenizing.special_tokens import EOS, PAD
from transformer_core.models import dropout, sublayers, transformer
from transformer_core.parallel import central, hooks
from transformer_core.training import assemble, evaluation, loop


def shared_mask(name: str, dimensions: int, part: Callable[[Tensor], Tensor]) -> None:
    """Adds the fault that all elements of tensors of so many dimensions share the mask of a part."""

    def drop(real: Any, x: Tensor, p: float) -> Tensor:
        masked = part(x) if x.dim() == dimensions else x
        return x * real(torch.ones_like(masked), p) if p else x

    dropping(name, dropout.DROPOUTS, "shared_draws", drop)


decaying = faults_of(
    "optimizer",
    assemble,
    "build_optimizer",
    base={"training": {"optimizer": {"kind": "adamw", "weight_decay": 0.1}}},
)


@fault("the end of a sentence has no loss", "loss", each_micro)
def without_ends(micro):
    labels = micro.target_output
    return replace(micro, target_output=labels.masked_fill(labels == EOS, PAD))


@fault("the last key gets no gradient", "masks", sublayers.Attention, "attention")
def second_half_of_keys(real, self, q, k, v, *rest, **named):
    k = torch.cat([k[:, :, :-1], k[:, :, -1:].detach()], dim=2)
    return real(self, q, k, v, *rest, **named)


@fault("sources are cut after eight tokens", "padding", transformer.EncoderDecoder, "encode")
def longer_rows_only(real, self, source, *rest):
    return real(self, torch.where(torch.arange(source.size(1)) < 8, source, PAD), *rest)


@fault("every element of a gradient is clipped", "clipping", before_update)
def clip_elements(parameters):
    for p in parameters:
        if p.grad is not None:
            p.grad.clamp_(-0.02, 0.02)


@decaying("decay in the gradient, not in the weights")
def decay_in_the_gradient(real, spec, parameters, *_):
    """L2 regularization in place of decoupled decay."""
    usual = {"betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}
    return torch.optim.Adam([{"params": list(parameters)}], lr=0.0, **usual)


@decaying("vectors do not decay")
def without_decay_of_vectors(real, spec, parameters, *more):
    made = real(spec, parameters, *more)
    group = made.param_groups[0]
    flat = [p for p in group["params"] if p.dim() < 2]
    group["params"] = [p for p in group["params"] if p.dim() > 1]
    made.add_param_group({"params": flat, "weight_decay": 0.0})
    return made


@fault("rates of two digits", "schedule", loop, "learning_rate", base=schedule("cosine"))
def rounded_rate(real, *args):
    return float(f"{real(*args):.1e}")


@recomputed("layers are computed once more from 8 bits")
def in_bf16_again(real, layer, *given, **named):
    calls = itertools.count()

    def once_more(first: Tensor, *rest: Any) -> Any:
        return layer(first.bfloat16().float() if next(calls) else first, *rest)

    return real(once_more, *given, **named)


@clipping("gradients are clipped before they are unscaled", **IN_FP16)
def clipped_before_unscaling(real, self, optim, parameters, clip):
    parameters = list(parameters)
    nn.utils.clip_grad_norm_(parameters, clip)
    return real(self, optim, parameters, clip)


@in_hooks("a ring that adds the first chunk twice", hooks, "ring_all_reduce", change=RING)
def twice_the_first_chunk(real, values, group, count):
    own = values[:8].clone()
    real(values, group, count)
    values[:8] += own * (group.rank() == 0)


@in_central(
    "weights are broadcast every other step", central.CentralStrategy, "_broadcast", made=True
)
def stale_on_odd_steps(real):
    count = itertools.count(1)

    def broadcast(self: Any, tensors: Any) -> None:
        call = next(count)
        if call % 2 or call < 3:
            real(self, tensors)

    return broadcast


@in_fsdp("shards of rank 1 learn 10 % slower", around_step)
def own_rate_on_rank(trainer, before, _):
    if torch.distributed.get_rank() == 1:
        for p, old in zip(trainer.model.parameters(), before, strict=True):
            p.copy_(old + (p - old) * 0.9)


shared_mask("one mask for all heads", 4, lambda x: x[:, :1])
shared_mask("one mask for all queries", 4, lambda x: x[:, :, :1])
shared_mask("whole tokens are dropped", 3, lambda x: x[..., :1])
shared_mask("one mask for all tokens of a sentence", 3, lambda x: x[:, :1])


@dropping("after a validation nothing is dropped", evaluation, "validation_loss")
def stays_in_evaluation(real, setup, *rest, **named):
    found = real(setup, *rest, **named)
    setup.model.eval()
    return found


smoothed = calling(lambda real, logits, labels, smoothing: real(logits, labels, 0.1))
fault("validation smooths labels", "loss", swap(evaluation, "token_loss_sum", smoothed))
