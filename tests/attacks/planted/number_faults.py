"""Number formats: of products, weights, residual streams, moments and messages."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.fault import fault, faults_of, in_fsdp, in_hooks, reduced
from tests.attacks.planted.planting import (
    Patch,
    arguments,
    around_step,
    before_update,
    calling,
    keep,
    put,
    result,
    several,
    swap,
)
from tests.attacks.planted.training_faults import after_loading
from transformer_core.models import loss, sublayers
from transformer_core.models.sublayers import FusedNorm
from transformer_core.parallel import fsdp, hooks
from transformer_core.training import checkpoint, optimizer, precision
from transformer_core.training.optimizer import MASTER

in_backward = faults_of(
    "precision", precision.Autocast, "backward", kind="statistical", change=changes.BF16
)

in_backward("gradients of half the size under bf16", lambda real, self, loss: real(self, loss / 2))
in_backward("gradients 5 % too large under bf16", lambda real, self, loss: real(self, loss * 1.05))
scale_stays = put(precision.ScaledAutocast, "unscale", lambda *_: None)
reduced("the loss scale stays in the gradients", scale_stays, change=changes.FP16)
in_bf16 = put(precision.Precision, "autocast", lambda self: torch.autocast("cpu", torch.bfloat16))
fault("32-bit products secretly in bf16", "precision", in_bf16)
reduced("the last decoder layer never learns under bf16", keep(lambda n, _: "decoder.1" in n))


@reduced("weights rounded to bf16 after each step", around_step)
def rounded_weights(trainer, _, __):
    for p in trainer.model.parameters():
        p.copy_(p.bfloat16())


def coarse(bits: int, parameters: Any) -> None:
    for p in parameters:
        if p.grad is not None:
            mantissa, exponent = torch.frexp(p.grad)
            p.grad.copy_(torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent))


for number in (2, 3):
    reduced(f"gradients with {number} significant bits", before_update(partial(coarse, number)))


masters = faults_of("bf16 weights", kind="statistical", change=changes.MASTERS)


def after_update(change: Callable[..., None], only: int | None = None) -> Patch:
    """Calls change(weight, state, its master before) after the update of every tensor, or of the one
    with this number."""

    def update(real: Any, ws: Any, gs: Any, states: Any, *rest: Any) -> None:
        before = [state[MASTER].clone() for state in states]
        real(ws, gs, states, *rest)
        for number, each in enumerate(zip(ws, states, before, strict=True)):
            if only in (None, number):
                change(*each)

    return swap(optimizer, "in_one_loop", calling(update))


def master_stays(w: Tensor, state: Any, before: Tensor) -> None:
    state[MASTER].copy_(before)


def weight_stays(w: Tensor, state: Any, before: Tensor) -> None:
    w.copy_(before)


def toward_zero(w: Tensor, state: Any, before: Tensor) -> None:
    bits = state[MASTER].view(torch.int32) & ~0xFFFF
    w.copy_(bits.view(torch.float32))


def few_bits_of_moments(w: Tensor, state: Any, before: Tensor) -> None:
    state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())


masters("masters never move", after_update(master_stays))
masters("one master stays behind its weights", after_update(master_stays, only=7))
masters("weights are those of the masters a step before", after_update(weight_stays))
masters("one tensor is not rounded again", after_update(weight_stays, only=7))
masters("masters keep 8 bits", after_update(lambda w, state, before: state[MASTER].copy_(w)))
masters("weights are rounded toward zero", after_update(toward_zero))
masters("second moments of masters keep 8 bits", after_update(few_bits_of_moments))
in_updates = faults_of(
    "bf16 weights", optimizer, "in_one_loop", kind="statistical", change=changes.FOLDED_MASTERS
)


@in_updates("updates go to the rounded weights", change=changes.MASTERS)
def from_rounded(real, ws, gs, states, *rest):
    """The update is added to the weights that the model uses, in 8 bits."""
    for w, state in zip(ws, states, strict=True):
        state[MASTER].copy_(w)
    real(ws, gs, states, *rest)


@in_updates("masters are not clipped")
def unclipped(real, ws, gs, states, group, scale=None):
    real(ws, gs, states, group, None)


@in_updates("masters are clipped twice")
def clipped_twice(real, ws, gs, states, group, scale=None):
    real(ws, gs, states, group, None if scale is None else scale * scale)


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


LARGE: changes.Change = {
    "model": {"d_model": 64, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1}
}
"""Tensors of 4,096 elements, below which moments are not kept in 8 bits."""
OF_EIGHT_BITS: dict[str, Any] = {"change": changes.EIGHT_BITS, "base": LARGE, "kind": "statistical"}


eight_bits = faults_of("8-bit state", **OF_EIGHT_BITS)
residual = faults_of("bf16 residual", change=changes.RESIDUAL, kind="statistical")
onednn = faults_of("oneDNN", change=changes.ONEDNN)


def stream(change: Callable[[Tensor], Tensor]) -> Patch:
    return swap(sublayers.Residual, "forward", result(change))


def rounded_to_fp8(x: Tensor) -> Tensor:
    return x + (x.to(torch.float8_e4m3fn).to(x.dtype) - x).detach()


def added_less(share: float) -> Patch:
    less = arguments(lambda self, x, sublayer: (self, x, lambda y: share * sublayer(y)))
    return swap(sublayers.Residual, "forward", less)


def overwritten(real: Any, *given: Any, **factors: Any) -> Any:
    """An addition to a tensor overwrites it instead."""
    return real(*given, **factors | {"beta": 0})


def codes_of_four_bits(trainer: Any) -> None:
    for state in trainer.state.values():
        for name in ("state1", "state2"):
            if state[name].dtype == torch.uint8:
                state[name].bitwise_and_(0xF0)


def after_step_of_eight_bits(change: Callable[[Any], None]) -> Patch:
    def step(real: Any, self: Any, *args: Any) -> Any:
        done = real(self, *args)
        with torch.no_grad():
            change(self)
        return done

    def patch() -> Any:
        # To import it takes a second, in every process that collects tests.
        from transformer_core.training.eight_bit_adamw import BlockwiseAdamW

        return swap(BlockwiseAdamW, "step", calling(step))()

    return patch


def scales_once(trainer: Any) -> None:
    """A block has the scale of the step before."""
    before = trainer.__dict__.setdefault("scales_of_the_step_before", {})
    for parameter, state in trainer.state.items():
        if "absmax1" in state:
            old = before.get(parameter)
            before[parameter] = state["absmax1"].clone()
            if old is not None:
                state["absmax1"].copy_(old)


def no_steps(state: dict[str, Any]) -> None:
    state["step"] = state["step"] * 0


residual("the stream keeps 4 bits", stream(rounded_to_fp8))


@residual("one sub-layer takes the place of the stream", sublayers.DecoderLayer, "forward")
def in_place_of_the_stream(real, self, x, memory, mask, cache=None, own=None):
    """Only the output of the decoder's feed-forward layers is passed on."""
    x = self.residuals[0](x, lambda y: self.self_attention.causal(y, cache, own))
    x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, mask, cache))
    return self.residuals[2](x, self.feed_forward) - x


residual("sub-layers are added at 90 %", added_less(0.9))
residual("sub-layers are added at 95 %", added_less(0.95))
residual("the stream is scaled by 98 %", stream(lambda x: 0.98 * x))


@residual(
    "gradients of normalizations are added up in 8 bits",
    FusedNorm,
    "forward",
    missed="sums of 60 terms in 8 bits are as good as the format; of thousands they are not",
)
def by_torch(real, self, x):
    """Normalization whose gradients a CPU adds up in bfloat16."""
    return nn.functional.layer_norm(
        x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
    )


@onednn("products of oneDNN secretly in bf16", precision, "_linear")
def _(real, x, w, b):
    return real(x.bfloat16().float(), w, b)


@onednn("gradients of weights leave out the last token", precision, "_product")
def last_token_left_out(real, a, b, bias=None):
    """Drops the last term of products with a transposed operand, like gradients of weights."""
    if bias is None and a.stride(0) == 1 and a.size(1) > 1:
        return real(a[:, :-1], b[:-1])
    return real(a, b, bias)


@onednn("maps without their bias", precision, "_added")
def without_the_bias(real, c, a, b, **factors):
    return real(c * 0, a, b, **factors)


onednn(
    "sums over chunks keep the last",
    # with chunks so small that there are several
    several(put(loss, "_CPU_ELEMENTS", 2**10), swap(precision, "_add_to", calling(overwritten))),
    change=merge(changes.ONEDNN, changes.ONE_PASS),
)
eight_bits("moments of 8 bits lose four of them", after_step_of_eight_bits(codes_of_four_bits))
eight_bits(
    "blocks of 8-bit moments have the scales of the step before",
    after_step_of_eight_bits(scales_once),
)
eight_bits("8-bit state resumed with the step count at 0", after_loading(no_steps))
sums_in_bf16 = swap(
    fsdp,
    "MixedPrecisionPolicy",
    calling(lambda real, **named: real(**named | {"reduce_dtype": torch.bfloat16})),
)
in_fsdp("FSDP sums in bf16 what should be summed in 32 bits", sums_in_bf16)
in_fsdp(
    "FSDP with weights in bf16 sums in bf16",
    sums_in_bf16,
    change=changes.FSDP_BF16,
    kind="statistical",
    missed="to round the sum of two ranks once more is within the format's own error",
)


@in_hooks(
    "messages of 16 bits are added, not averaged", hooks.Compressed, "average", **changes.COMPRESSED
)
def summed(real, self, bucket):
    bucket.buffer().mul_(torch.distributed.get_world_size())
    return real(self, bucket)


in_bf16 = arguments(lambda self, traffic, _: (self, traffic, torch.bfloat16))
compressed = swap(hooks.Compressed, "__init__", in_bf16)
in_hooks("messages in bf16 in the place of fp16", compressed, **changes.COMPRESSED)


@in_hooks(
    "PowerSGD with the error of another step",
    hooks.PowerSgd,
    "average",
    **changes.BY_POWER,
    made=True,
)
def stale_error(real):
    """Every other time, the remainder of a step is forgotten."""
    calls = itertools.count()

    def average(self: Any, bucket: Any) -> Any:
        before = {k: v.clone() for k, v in self.state.error_dict.items()}
        future = real(self, bucket)
        if next(calls) % 2:
            for index, error in before.items():
                self.state.error_dict[index].copy_(error)
        return future

    return average
