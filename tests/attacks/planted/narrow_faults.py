"""Faults that hit some tokens, heads, tensors, sizes or steps only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.utils.checkpoint as recomputation
from torch import Tensor, nn

from tests.attacks.planted.fault import (
    CHECKPOINT,
    DROPPING,
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
from tests.attacks.planted.planting import around_step, before_update, each_micro
from transformer_core.data.tokenizing.special_tokens import EOS, PAD
from transformer_core.models import dropout, sublayers, transformer
from transformer_core.parallel import central, fsdp, hooks
from transformer_core.training import assemble, evaluation, loop, precision


def one_mask_for(keep: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """Masks that all elements share of what ``keep`` leaves one of."""

    def make(real: Any) -> Any:
        return lambda x, p: x * real(torch.ones_like(keep(x)), p) if p else x

    return make


DECAY = {"training": {"optimizer": {"kind": "adamw", "weight_decay": 0.1}}}
drawn = faults_of("dropout", dropout.DROPOUTS, "shared_draws", **DROPPING)


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


@fault(
    "decay in the gradient, not in the weights",
    "optimizer",
    assemble,
    "build_optimizer",
    base=DECAY,
)
def decay_in_the_gradient(real, spec, parameters, *_):
    """L2 regularization in place of decoupled decay."""
    return torch.optim.Adam(
        [{"params": list(parameters)}], lr=0.0, betas=spec.betas, eps=spec.eps,
        weight_decay=spec.weight_decay,
    )  # fmt: skip


@fault("vectors do not decay", "optimizer", assemble, "build_optimizer", base=DECAY)
def without_decay_of_vectors(real, spec, parameters, *more):
    made = real(spec, parameters, *more)
    group = made.param_groups[0]
    flat = [p for p in group["params"] if p.dim() < 2]
    group["params"] = [p for p in group["params"] if p.dim() > 1]
    made.add_param_group({"params": flat, "weight_decay": 0.0})
    return made


@fault(
    "rates of two digits", "schedule", loop, "learning_rate", base=schedule(kind="cosine", warmup=3)
)
def rounded_rate(real, *args):
    return float(f"{real(*args):.1e}")


@fault(
    "layers are computed once more from 8 bits",
    "activation checkpointing",
    recomputation,
    "checkpoint",
    change=CHECKPOINT,
)
def in_bf16_again(real, layer, *given, **named):
    calls = []

    def once_more(*inputs: Any) -> Any:
        calls.append(1)
        first, *rest = inputs
        return layer(first.bfloat16().float() if len(calls) > 1 else first, *rest)

    return real(once_more, *given, **named)


@fault(
    "gradients are clipped before they are unscaled",
    "clipping",
    precision.Precision,
    "step",
    **IN_FP16,
)
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
    calls = [0]

    def broadcast(self: Any, tensors: Any) -> None:
        calls[0] += 1
        if calls[0] % 2 or calls[0] < 3:
            real(self, tensors)

    return broadcast


@in_fsdp("shards of rank 1 learn 10 % slower", around_step)
def own_rate_on_rank(trainer, before, _):
    import torch.distributed as dist

    if dist.get_rank() == 1:
        for p, old in zip(trainer.model.parameters(), before, strict=True):
            p.copy_(old + (p - old) * 0.9)


@in_fsdp("FSDP sums in bf16 what should be summed in 32 bits", fsdp, "MixedPrecisionPolicy")
def _(real, **n):
    return real(reduce_dtype=torch.bfloat16, **{k: v for k, v in n.items() if k != "reduce_dtype"})


drawn("one mask for all heads", one_mask_for(lambda x: x[:, :1] if x.dim() == 4 else x), made=True)
drawn(
    "one mask for all queries",
    one_mask_for(lambda x: x[:, :, :1] if x.dim() == 4 else x),
    made=True,
)
drawn(
    "whole tokens are dropped", one_mask_for(lambda x: x[..., :1] if x.dim() == 3 else x), made=True
)
drawn(
    "one mask for all tokens of a sentence",
    one_mask_for(lambda x: x[:, :1] if x.dim() == 3 else x),
    made=True,
)


@dropping("after a validation nothing is dropped", evaluation, "validation_loss")
def stays_in_evaluation(real, setup, *rest, **named):
    found = real(setup, *rest, **named)
    setup.model.eval()
    return found


@fault("validation smooths labels", "loss", evaluation, "token_loss_sum")
def with_smoothing(real, logits, labels, smoothing):
    return real(logits, labels, 0.1)
