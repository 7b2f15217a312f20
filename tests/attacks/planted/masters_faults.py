"""Weights in bfloat16, of which the optimizer keeps masters of 32 bits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from schemas.base import merge
from tests.attacks.planted.fault import Change, faults_of
from tests.attacks.planted.planting import Patch, swap
from transformer_core.training import checkpoint, optimizer, precision
from transformer_core.training.optimizer import MASTER

MASTERS: Change = {"training": {"precision": {"kind": "bf16_weights"}}}


masters = faults_of("bf16 weights", kind="statistical", change=MASTERS)


def each_update(change: Callable[..., None]) -> Patch:
    """Something else in the update of every tensor: change(real, weight, gradient, state, group,
    scale, number of the tensor)."""

    def make(real: Any) -> Any:
        def update(ws: Any, gs: Any, states: Any, group: Any, scale: Any = None) -> None:
            for number, each in enumerate(zip(ws, gs, states, strict=True)):

                def one(w: Any, g: Any, state: Any, scale: Any = scale) -> None:
                    real([w], [g], [state], group, scale)

                change(one, *each, scale, number)

        return update

    return swap(optimizer, "in_one_loop", make)


def masters_stay(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    kept = state[MASTER].clone()
    one(w, g, state)
    state[MASTER].copy_(kept)


def weights_stay(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    """Weights have what masters were a step before."""
    before = state[MASTER].clone()
    one(w, g, state)
    w.copy_(before)


def one_stays(one: Any, w: Tensor, g: Tensor, state: Any, scale: Any, number: int) -> None:
    if number == 7:
        weights_stay(one, w, g, state)
    else:
        one(w, g, state)


def one_master_stays(one: Any, w: Tensor, g: Tensor, state: Any, _: Any, number: int) -> None:
    if number == 7:
        masters_stay(one, w, g, state)
    else:
        one(w, g, state)


def from_rounded(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    """The update goes to what the weights are, in 8 bits."""
    state[MASTER].copy_(w)
    one(w, g, state)


def in_bf16(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    one(w, g, state)
    state[MASTER].copy_(w)


def toward_zero(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    one(w, g, state)
    bits = state[MASTER].view(torch.int32) & ~0xFFFF
    w.copy_(bits.view(torch.float32))


def unclipped(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    one(w, g, state, scale=None)


def clipped_twice(one: Any, w: Tensor, g: Tensor, state: Any, scale: Any, __: int) -> None:
    one(w, g, state, scale=None if scale is None else scale * scale)


def few_bits_of_moments(one: Any, w: Tensor, g: Tensor, state: Any, *_: Any) -> None:
    one(w, g, state)
    state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())


masters("masters never move", each_update(masters_stay))
masters("weights are those of the masters a step before", each_update(weights_stay))
masters("one tensor is not rounded anew", each_update(one_stays))
masters("one master stays behind its weights", each_update(one_master_stays))
masters("updates go to the rounded weights", each_update(from_rounded))
masters("masters keep 8 bits", each_update(in_bf16))
masters("weights are rounded toward zero", each_update(toward_zero))
masters(
    "masters are not clipped",
    each_update(unclipped),
    change=merge(MASTERS, {"training": {"clipping": "folded"}}),
)
masters(
    "masters are clipped twice",
    each_update(clipped_twice),
    change=merge(MASTERS, {"training": {"clipping": "folded"}}),
)
masters("second moments of masters keep 8 bits", each_update(few_bits_of_moments))


@masters("masters lost at a checkpoint", checkpoint, "_load_optimizer")
def masters_lost(real, setup, *rest):
    real(setup, *rest)
    for parameter, state in setup.optimizer.state.items():
        state[MASTER] = parameter.detach().float()


@masters("weights of 8 bits without masters", precision.LowWeights, "convert")
def weights_without_masters(real, self, model):
    real(self, model)
    return {}


@masters("masters begin rounded", precision.LowWeights, "convert")
def masters_rounded_once(real, self, model):
    return {new: new.detach().float() for new in real(self, model)}
