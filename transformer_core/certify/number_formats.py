"""Number formats, emulated: what a format of fewer bits does to a matrix product.

A number is rounded to the nearest that the format has and computed with in 32 bits, as matrix units
do that multiply in 16 bits and add in 32 (Micikevicius et al., ICLR 2018, arXiv 1710.03740). This
shares no code with the kernels that a variant uses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from schemas.config.facts import NumberFormat
from schemas.config.run_spec import RunSpec

Rounding = Callable[[Tensor], Tensor]


def to_bf16(x: Tensor) -> Tensor:
    """``x`` to 8 significant bits."""
    return x.to(torch.bfloat16).to(x.dtype)


def to_fp16(x: Tensor) -> Tensor:
    """``x`` to 11 significant bits and the range of float16."""
    return x.to(torch.float16).to(x.dtype)


def to_tf32(x: Tensor) -> Tensor:
    """float32 ``x`` to 11 significant bits (NVIDIA A100 white paper, 2020)."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).view_as(x)


@dataclass(frozen=True)
class Format:
    """What is rounded in a training step."""

    base: torch.dtype
    """Format of everything that is not rounded."""
    rounding: Rounding | None = None
    """Of the operands of matrix products, forward and backward."""
    results: bool = False
    """Whether the results of matrix products are rounded too: tensors of 16 bits."""
    everything: bool = False
    """Whether what lies between matrix products is rounded too."""
    weights: bool = False
    """Whether all weights are rounded before they are used, also those that no product takes: of
    normalizations, biases and embeddings."""
    loss_scale: float = 1.0
    """Factor on the loss during the backward pass."""
    unit: float = 2.0**-24
    """Unit round-off: the largest relative error of rounding a number."""
    gate: float = 0.0
    """A ReLU opens above this many times the size of its inputs, instead of above 0."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix product ``a @ b``."""
        if self.rounding is None:
            return a @ b
        if self.results:
            both = [_Rounded.apply(x, self.rounding, self.rounding) for x in (a, b)]
            result: Tensor = _Rounded.apply(both[0] @ both[1], self.rounding, self.rounding)
            return result
        forward = [_Rounded.apply(x, self.rounding, None) for x in (a, b)]
        result = _Rounded.apply(forward[0] @ forward[1], None, self.rounding)
        return result

    def weights_used(self, kept: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Of the weights that an optimizer keeps, those that a step computes with, by name."""
        if self.rounding is None or not self.weights:
            return kept
        return {name: self.rounding(weight) for name, weight in kept.items()}

    def weight(self, x: Tensor) -> Tensor:
        """A weight, as the step has it; its gradient has as many bits."""
        if self.rounding is None or not self.weights:
            return x
        result: Tensor = _Rounded.apply(x, self.rounding, self.rounding)
        return result

    def rounded(self, x: Tensor, result: bool = False) -> Tensor:
        """An operand of a matrix product, or its ``result``; without a gradient."""
        if self.rounding is None or (result and not self.results):
            return x
        return self.rounding(x)

    def between(self, x: Tensor) -> Tensor:
        """A result that is not that of a matrix product."""
        if self.rounding is None or not self.everything:
            return x
        result: Tensor = _Rounded.apply(x, self.rounding, self.rounding)
        return result


class _Rounded(torch.autograd.Function):
    """Rounds x on its way forward, and its gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Rounding | None, back: Rounding | None) -> Tensor:
        ctx.back = back
        return x.clone() if forth is None else forth(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return (grad if ctx.back is None else ctx.back(grad)), None, None


EXACT = Format(torch.float64)
"""What other formats are compared with."""
SINGLE = Format(torch.float32)


def adds_in_32_bits() -> bool:
    """Whether matrix products of 32 bits have all of them. A process-wide switch, of a variant or
    of a fault, may take fewer, on a CPU too: then :data:`SINGLE` says nothing."""
    # The lowest bits of the operands are lost in all formats of fewer.
    a = torch.full((64, 64), 1 + 2.0**-16)
    return bool((a @ a / 64 - float(a[0, 0]) ** 2).abs().max() < 2.0**-20)


def single_is_independent(spec: RunSpec) -> bool:
    """Whether :data:`SINGLE` can tell what a run of ``spec`` does wrong: its products have all 32
    bits, and are not by the kernels that the run put in place for the whole process."""
    return spec.numbers.matmul != "onednn" and adds_in_32_bits()


ROUNDINGS: Mapping[NumberFormat, tuple[Rounding, float]] = MappingProxyType(
    {"bf16": (to_bf16, 2.0**-9), "fp16": (to_fp16, 2.0**-11), "tf32": (to_tf32, 2.0**-11)}
)
"""How formats of fewer than 32 bits round, and their unit round-offs."""


def format_of(spec: RunSpec) -> Format:
    """The format in which the training steps of ``spec`` compute."""
    numbers = spec.numbers
    if numbers.products == "fp32":
        return SINGLE
    rounding, unit = ROUNDINGS[numbers.products]
    return Format(
        torch.float32,
        rounding,
        results=numbers.results,
        everything=numbers.everything,
        weights=numbers.rounded_weights,
        loss_scale=2.0**12 if numbers.loss_scaled else 1.0,
        unit=unit,
    )
