"""Residual streams and messages in 16 bits, moments of 8 bits, products by oneDNN."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from schemas.base import merge
from tests.attacks.planted.fault import (
    BF16,
    BY_POWER,
    COMPRESSED,
    FSDP,
    Change,
    faults_of,
    in_fsdp,
    in_hooks,
)
from tests.attacks.planted.loss_faults import ONE_PASS
from tests.attacks.planted.planting import Patch, arguments, result, swap
from tests.attacks.planted.resuming_faults import after_loading
from transformer_core.models import loss, sublayers
from transformer_core.models.sublayers import FusedNorm
from transformer_core.parallel import fsdp, hooks
from transformer_core.training import precision

RESIDUAL: Change = merge(BF16, {"model": {"residual": "bf16"}})
ONEDNN: Change = {"training": {"precision": {"kind": "fp32_onednn"}}}
EIGHT_BITS: Change = {"training": {"optimizer": {"kind": "adamw_8bit"}}}
LARGE: Change = {"model": {"d_model": 64, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1}}
"""Tensors of 4,096 elements, below which moments are not kept in 8 bits."""
OF_EIGHT_BITS: dict[str, Any] = {"change": EIGHT_BITS, "base": LARGE, "kind": "statistical"}


eight_bits = faults_of("8-bit state", **OF_EIGHT_BITS)
residual = faults_of("bf16 residual", change=RESIDUAL, kind="statistical")


onednn = faults_of("oneDNN", change=ONEDNN)


def stream(change: Callable[[Tensor], Tensor]) -> Patch:
    return swap(sublayers.Residual, "forward", result(change))


def rounded_to_fp8(x: Tensor) -> Tensor:
    return x + (x.to(torch.float8_e4m3fn).to(x.dtype) - x).detach()


def added_less(share: float) -> Callable[[Any], Any]:
    return lambda real: lambda self, x, sublayer: real(self, x, lambda y: share * sublayer(y))


def overwritten(real: Any) -> Any:
    return lambda c, a, b, **factors: real(c, a, b, **factors | {"beta": 0})


@contextlib.contextmanager
def overwritten_chunks() -> Iterator[None]:
    """What is added to a tensor overwrites it, with chunks so small that there are several."""
    with mock.patch.object(loss, "_CPU_ELEMENTS", 2**10), swap(precision, "_add_to", overwritten)():
        yield


def codes_of_four_bits(trainer: Any) -> None:
    for state in trainer.state.values():
        for name in ("state1", "state2"):
            if state[name].dtype == torch.uint8:
                state[name].bitwise_and_(0xF0)


def after_step_of_eight_bits(change: Callable[[Any], None]) -> Patch:
    def make(real: Any) -> Any:
        def step(self: Any, *args: Any) -> Any:
            done = real(self, *args)
            with torch.no_grad():
                change(self)
            return done

        return step

    def patch() -> contextlib.AbstractContextManager[Any]:
        # To import it takes a second, in every process that collects tests.
        from transformer_core.training.eight_bit_adamw import BlockwiseAdamW

        return swap(BlockwiseAdamW, "step", make)()

    return patch


def scales_once(trainer: Any) -> None:
    """The scale of a block is that of the step before."""
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
    """Only the output of the decoder's feed-forward layers goes on."""
    x = self.residuals[0](x, lambda y: self.self_attention.causal(y, cache, own))
    x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, mask, cache))
    return self.residuals[2](x, self.feed_forward) - x


residual("sub-layers are added at 90 %", swap(sublayers.Residual, "forward", added_less(0.9)))
residual("sub-layers are added at 95 %", swap(sublayers.Residual, "forward", added_less(0.95)))
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
    """Of products with a transposed operand, which gradients of weights are, the last term."""
    if bias is None and a.stride(0) == 1 and a.size(1) > 1:
        return real(a[:, :-1], b[:-1])
    return real(a, b, bias)


@onednn("maps without their bias", precision, "_added")
def without_the_bias(real, c, a, b, **factors):
    return real(c * 0, a, b, **factors)


onednn("sums over chunks keep the last", overwritten_chunks, change=merge(ONEDNN, ONE_PASS))
eight_bits("moments of 8 bits lose four of them", after_step_of_eight_bits(codes_of_four_bits))
eight_bits(
    "blocks of 8-bit moments have the scales of the step before",
    after_step_of_eight_bits(scales_once),
)
eight_bits("8-bit state resumed with the step count at 0", after_loading(no_steps))
in_fsdp(
    "FSDP with weights in bf16 sums in bf16",
    fsdp,
    "MixedPrecisionPolicy",
    lambda real, **named: real(**named | {"reduce_dtype": torch.bfloat16}),
    change=FSDP | {"parallel": {"kind": "fsdp", "bf16": True}},
    kind="statistical",
    missed="to round the sum of two ranks once more is within the format's own error",
)


@in_hooks("messages of 16 bits are added, not averaged", hooks.Compressed, "average", **COMPRESSED)
def summed(real, self, bucket):
    bucket.buffer().mul_(torch.distributed.get_world_size())
    return real(self, bucket)


in_hooks(
    "messages in bf16 in the place of fp16",
    swap(
        hooks.Compressed,
        "__init__",
        arguments(lambda self, traffic, _: (self, traffic, torch.bfloat16)),
    ),
    **COMPRESSED,
)


@in_hooks(
    "PowerSGD with the error of another step", hooks.PowerSgd, "average", **BY_POWER, made=True
)
def stale_error(real):
    """What a step left out is forgotten every other time."""
    calls = itertools.count()

    def average(self: Any, bucket: Any) -> Any:
        before = {k: v.clone() for k, v in self.state.error_dict.items()}
        future = real(self, bucket)
        if next(calls) % 2:
            for index, error in before.items():
                self.state.error_dict[index].copy_(error)
        return future

    return average
