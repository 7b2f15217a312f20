"""Faults that hit some tokens, heads, tensors, sizes or steps only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.utils.checkpoint as recomputation
from torch import Tensor, nn

from tests.attacks.planted.fault import (
    CENTRAL,
    FP16,
    FSDP,
    RING,
    Fault,
    dropping,
    schedule,
    spread,
)
from tests.attacks.planted.planting import (
    around_step,
    before_update,
    each_micro,
    swap,
    swap_item,
)
from transformer_core.data.tokenizing.special_tokens import EOS, PAD
from transformer_core.models import dropout, sublayers
from transformer_core.models import transformer as transformer_module
from transformer_core.parallel import central, fsdp
from transformer_core.parallel import hooks as compression
from transformer_core.training import assemble, evaluation, loop
from transformer_core.training import precision as autocast


def without_ends(micro: Any) -> Any:
    labels = micro.target_output
    return replace(micro, target_output=labels.masked_fill(labels == EOS, PAD))


def clip_elements(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        if p.grad is not None:
            p.grad.clamp_(-0.02, 0.02)


def decay_in_the_gradient(real: Any) -> Any:
    """L2 regularization in place of decoupled decay."""

    def build(spec: Any, parameters: Any, *_: Any) -> Any:
        return torch.optim.Adam(
            [{"params": list(parameters)}], lr=0.0, betas=spec.betas, eps=spec.eps,
            weight_decay=spec.weight_decay,
        )  # fmt: skip

    return build


def without_decay_of_vectors(real: Any) -> Any:
    def build(spec: Any, parameters: Any, *more: Any) -> Any:
        made = real(spec, parameters, *more)
        group = made.param_groups[0]
        flat = [p for p in group["params"] if p.dim() < 2]
        group["params"] = [p for p in group["params"] if p.dim() > 1]
        made.add_param_group({"params": flat, "weight_decay": 0.0})
        return made

    return build


def one_mask_for(keep: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """Masks that all elements share of what ``keep`` leaves one of."""

    def make(real: Any) -> Any:
        return lambda x, p: x * real(torch.ones_like(keep(x)), p) if p else x

    return make


def second_half_of_keys(real: Any) -> Any:
    """The last key of a row gets no gradient."""

    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any) -> Any:
        k = torch.cat([k[:, :, :-1], k[:, :, -1:].detach()], dim=2)
        return real(self, q, k, v, *rest, **named)

    return attend


def longer_rows_only(real: Any) -> Any:
    """Rows of more than eight tokens are cut in the encoder."""

    def encode(self: Any, source: Tensor, *rest: Any) -> Any:
        return real(self, torch.where(torch.arange(source.size(1)) < 8, source, PAD), *rest)

    return encode


def stays_in_evaluation(real: Any) -> Any:
    def validate(setup: Any, *rest: Any, **named: Any) -> Any:
        found = real(setup, *rest, **named)
        setup.model.eval()
        return found

    return validate


def with_smoothing(real: Any) -> Any:
    return lambda logits, labels, smoothing: real(logits, labels, 0.1)


def in_bf16_again(real: Any) -> Any:
    """Layers that are computed once more from inputs of fewer bits."""

    def recompute(layer: Any, *given: Any, **named: Any) -> Any:
        calls = []

        def once_more(*inputs: Any) -> Any:
            calls.append(1)
            first, *rest = inputs
            return layer(first.bfloat16().float() if len(calls) > 1 else first, *rest)

        return real(once_more, *given, **named)

    return recompute


def twice_the_first_chunk(real: Any) -> Any:
    def ring(values: Tensor, group: Any, count: Any) -> None:
        own = values[:8].clone()
        real(values, group, count)
        values[:8] += own * (group.rank() == 0)

    return ring


def stale_on_odd_steps(real: Any) -> Any:
    calls = [0]

    def broadcast(self: Any, tensors: Any) -> None:
        calls[0] += 1
        if calls[0] % 2 or calls[0] < 3:
            real(self, tensors)

    return broadcast


def own_rate_on_rank(trainer: Any, before: list[Tensor], _: int) -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        for p, old in zip(trainer.model.parameters(), before, strict=True):
            p.copy_(old + (p - old) * 0.9)


def rounded_rate(real: Any) -> Any:
    return lambda *args: float(f"{real(*args):.1e}")


def clipped_before_unscaling(real: Any) -> Any:
    def step(self: Any, optim: Any, parameters: Any, clip: float) -> Any:
        parameters = list(parameters)
        nn.utils.clip_grad_norm_(parameters, clip)
        return real(self, optim, parameters, clip)

    return step


DECAY = {"training": {"optimizer": {"kind": "adamw", "weight_decay": 0.1}}}
SHARED = "shared_draws"
FAULTS = [
    Fault("the end of a sentence has no loss", "loss", each_micro(without_ends)),
    Fault(
        "the last key gets no gradient",
        "masks",
        swap(sublayers.Attention, "attention", second_half_of_keys),
    ),
    Fault(
        "sources are cut after eight tokens",
        "padding",
        swap(transformer_module.EncoderDecoder, "encode", longer_rows_only),
    ),
    Fault("every element of a gradient is clipped", "clipping", before_update(clip_elements)),
    Fault(
        "decay in the gradient, not in the weights",
        "optimizer",
        swap(assemble, "build_optimizer", decay_in_the_gradient),
        base=DECAY,
    ),
    Fault(
        "vectors do not decay",
        "optimizer",
        swap(assemble, "build_optimizer", without_decay_of_vectors),
        base=DECAY,
    ),
    Fault(
        "rates of two digits",
        "schedule",
        swap(loop, "learning_rate", rounded_rate),
        base=schedule(kind="cosine", warmup=3),
    ),
    Fault(
        "layers are computed once more from 8 bits",
        "activation checkpointing",
        swap(recomputation, "checkpoint", in_bf16_again),
        {"model": {"checkpoint": "layers"}},
    ),
    Fault(
        "gradients are clipped before they are unscaled",
        "clipping",
        swap(autocast.Precision, "step", clipped_before_unscaling),
        FP16,
        kind="statistical",
    ),
    spread(
        "a ring that adds the first chunk twice",
        "hooks",
        swap(compression, "ring_all_reduce", twice_the_first_chunk),
        RING,
    ),
    spread(
        "weights are broadcast every other step",
        "central",
        swap(central.CentralStrategy, "_broadcast", stale_on_odd_steps),
        CENTRAL,
    ),
    spread("shards of rank 1 learn 10 % slower", "FSDP", around_step(own_rate_on_rank), FSDP),
    spread(
        "FSDP sums in bf16 what should be summed in 32 bits",
        "FSDP",
        swap(
            fsdp,
            "MixedPrecisionPolicy",
            lambda real: (
                lambda **n: real(
                    reduce_dtype=torch.bfloat16,
                    **{k: v for k, v in n.items() if k != "reduce_dtype"},
                )
            ),
        ),
        FSDP,
    ),
    dropping(
        "one mask for all heads",
        swap_item(
            dropout.DROPOUTS, SHARED, one_mask_for(lambda x: x[:, :1] if x.dim() == 4 else x)
        ),
    ),
    dropping(
        "one mask for all queries",
        swap_item(
            dropout.DROPOUTS, SHARED, one_mask_for(lambda x: x[:, :, :1] if x.dim() == 4 else x)
        ),
    ),
    dropping(
        "whole tokens are dropped",
        swap_item(
            dropout.DROPOUTS, SHARED, one_mask_for(lambda x: x[..., :1] if x.dim() == 3 else x)
        ),
    ),
    dropping(
        "one mask for all tokens of a sentence",
        swap_item(
            dropout.DROPOUTS, SHARED, one_mask_for(lambda x: x[:, :1] if x.dim() == 3 else x)
        ),
    ),
    dropping(
        "after a validation nothing is dropped",
        swap(evaluation, "validation_loss", stays_in_evaluation),
    ),
    Fault("validation smooths labels", "loss", swap(evaluation, "token_loss_sum", with_smoothing)),
]
