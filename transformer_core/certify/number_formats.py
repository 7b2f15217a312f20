"""Emulates number formats with fewer bits: how they change the result of a matrix product.

Operands are rounded to the nearest number of the format, and then computed with in 32 bits, like matrix
units that multiply in 16 bits and add in 32 (Micikevicius et al., ICLR 2018, arXiv 1710.03740).
The emulation shares no code with the kernels that a variant uses.
"""

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from schemas.config.facts import NumberFormat
from schemas.config.run_spec import RunSpec

Rounding = Callable[[Tensor], Tensor]


def to_bf16(x: Tensor) -> Tensor:
    """``x`` rounded to 8 significant bits."""
    return x.to(torch.bfloat16).to(x.dtype)


def to_fp16(x: Tensor) -> Tensor:
    """``x`` rounded to 11 significant bits and the range of float16."""
    return x.to(torch.float16).to(x.dtype)


def to_tf32(x: Tensor) -> Tensor:
    """float32 ``x`` rounded to 11 significant bits (NVIDIA A100 white paper, 2020)."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).view_as(x)


def to_fp8(x: Tensor) -> Tensor:
    """``x`` scaled into the range of float8 (e4m3) and rounded to 4 significant bits."""
    scale = 448.0 / x.abs().max().clamp(min=1e-12)
    return (x * scale).float().to(torch.float8_e4m3fn).to(x.dtype) / scale


@dataclass(frozen=True)
class Format:
    """A number format: which numbers a training step rounds, and to what."""

    base: torch.dtype
    """Data type of all computations; rounded numbers are stored in it, too."""
    rounding: Rounding | None = None
    """Rounds the operands of matrix products, forward and backward; None rounds nothing."""
    results: bool = False
    """Whether results of matrix products are rounded, too, as if stored in 16 bits."""
    everything: bool = False
    """Whether results of all other operations are rounded, too."""
    weights: bool = False
    """Whether all weights are rounded before use, including normalizations, biases and embeddings,
    which enter no matrix product."""
    loss_scale: float = 1.0
    """Factor that scales the loss for the backward pass."""
    unit: float = 2.0**-24
    """Unit round-off: the largest relative error of rounding a number."""
    gates: tuple[float, ...] = ()
    """For each ReLU, in the order of the forward pass, the threshold that replaces 0, relative to the
    root mean square of its inputs."""
    whole_targets: bool = False
    """Whether the loss is a sum over the whole vocabulary, as many programs compute it, and not of the
    few terms that it can be written in: thousands of terms round more than these."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix product ``a @ b``."""
        return a @ b if self.rounding is None else _Product.apply(a, b, self)

    def stored(self, x: Tensor, device: torch.device) -> Tensor:
        """``x`` on ``device`` in the base of the format, or the complex one; integers stay as they are."""
        base = self.base.to_complex() if x.is_complex() else self.base
        return x.to(device, base if x.is_complex() or x.is_floating_point() else x.dtype)

    def weights_used(
        self, kept: Mapping[str, Tensor], parameters: Container[str]
    ) -> Mapping[str, Tensor]:
        """The weights that a step computes with, by name, given those that the optimizer keeps, and
        buffers, which are not among the ``parameters``."""
        if self.rounding is None or not self.weights:
            return kept
        narrow = {n for n, w in kept.items() if n in parameters and w.is_floating_point()}
        return {n: self.rounding(w) if n in narrow else w for n, w in kept.items()}

    def weight(self, x: Tensor) -> Tensor:
        """A weight as a step uses it; its gradient is rounded in the same way."""
        return _Rounded.apply(x, self.rounding) if self.rounding and self.weights else x

    def rounded(self, x: Tensor, result: bool = False) -> Tensor:
        """An operand of a matrix product, or its ``result``, rounded if the format rounds it. Autograd
        does not see the rounding."""
        if self.rounding is None or (result and not self.results):
            return x
        return self.rounding(x)

    def between(self, x: Tensor) -> Tensor:
        """The result of any other operation, rounded if the format rounds it, like its gradient."""
        return _Rounded.apply(x, self.rounding) if self.rounding and self.everything else x


class _Product(torch.autograd.Function):
    """A matrix product whose operands are rounded, forward and backward."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, form: Format) -> Tensor:
        a, b = form.rounded(a), form.rounded(b)
        ctx.save_for_backward(a, b)
        ctx.form = form
        return form.rounded(a @ b, result=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        form, grad = ctx.form, ctx.form.rounded(grad)
        of_a = grad @ b.transpose(-1, -2)
        if b.dim() < a.dim():  # a weight, shared by all rows
            a, grad = a.flatten(0, -2), grad.flatten(0, -2)
        of_b = a.transpose(-1, -2) @ grad
        return form.rounded(of_a, result=True), form.rounded(of_b, result=True), None


class _Rounded(torch.autograd.Function):
    """Rounds x in the forward pass, and its gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Rounding) -> Tensor:
        ctx.rounding = rounding
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.rounding(grad), None


EXACT = Format(torch.float64)
"""64 bits, the format that all others are compared with."""
SINGLE = Format(torch.float32)
ANY_SINGLE = Format(torch.float32, whole_targets=True)
"""32 bits with as much rounding as the loss of any program has."""


@contextlib.contextmanager
def whole_products(device: torch.device) -> Iterator[None]:
    """Lets 32-bit matrix products on a GPU use all bits of their operands, whatever the run has set
    for the whole process."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32 if device.type == "cuda" else False
    if before:
        settings.allow_tf32 = False
    try:
        yield
    finally:
        if before:
            settings.allow_tf32 = True


def adds_in_32_bits() -> bool:
    """Whether 32-bit matrix products use all bits of their operands. A process-wide switch of a
    variant, or a fault, may reduce them, even on a CPU; :data:`SINGLE` is useless then."""
    # All narrower formats lose the lowest bits of the operands.
    a = torch.full((64, 64), 1 + 2.0**-16)
    return bool((a @ a / 64 - float(a[0, 0]) ** 2).abs().max() < 2.0**-20)


def single_is_independent(spec: RunSpec) -> bool:
    """Whether :data:`SINGLE` can show errors in a run of ``spec``: its matrix products use all 32 bits,
    and not the kernels that the run has installed for the whole process."""
    return spec.numbers.matmul != "onednn" and adds_in_32_bits()


ROUNDINGS: Mapping[NumberFormat, tuple[Rounding, float]] = MappingProxyType(
    {
        "bf16": (to_bf16, 2.0**-8),
        "fp16": (to_fp16, 2.0**-11),
        "tf32": (to_tf32, 2.0**-11),
        "fp8": (to_fp8, 2.0**-4),
    }
)
"""The rounding of every format with fewer than 32 bits, and its unit round-off."""


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
