"""Dropout in one pass with what stands beside it, on a CPU: no masks are kept."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def fits(x: Tensor) -> bool:
    """Whether the compiled loops take x: numbers of 32 bits on a CPU, that are there."""
    plain = type(x) in (Tensor, nn.Parameter)  # a fake tensor has no numbers
    return plain and x.device.type == "cpu" and x.dtype == torch.float32


def fused_dropout(x: Tensor, p: float) -> Tensor:
    """x with each element dropped with probability p, else over 1 - p."""
    result: Tensor = _Kept.apply(x, p)
    return result


def dropout_of_relu(x: Tensor, p: float) -> Tensor:
    """:func:`fused_dropout` of max(x, 0)."""
    result: Tensor = _OfRelu.apply(x, p)
    return result


def dropout_added(residual: Tensor, x: Tensor, p: float) -> Tensor:
    """``residual`` plus :func:`fused_dropout` of x, both of one shape."""
    result: Tensor = _Added.apply(residual, x, p)
    return result


def _seed() -> int:
    """Of one call, from torch's generator, so that a checkpoint or a seed brings it back."""
    return int(torch.empty((), dtype=torch.int64).random_())


class _Kept(torch.autograd.Function):
    """x, p -> the same shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        # Here, because the compiler takes half a second to import, in every process.
        from transformer_core.model.layers import dropout_kernels as kernels

        ctx.seed, ctx.p, ctx.kernels = _seed(), p, kernels
        return kernels.kept(x, ctx.seed, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.kernels.kept(grad, ctx.seed, ctx.p), None


class _Added(torch.autograd.Function):
    """residual, x, p -> the same shape."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, p: float) -> Tensor:
        from transformer_core.model.layers import dropout_kernels as kernels

        ctx.seed, ctx.p, ctx.kernels = _seed(), p, kernels
        return kernels.added(residual, x, ctx.seed, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, ctx.kernels.kept(grad, ctx.seed, ctx.p), None


class _OfRelu(torch.autograd.Function):
    """x, p -> the same shape. What is kept is the result, which the next layer keeps anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        from transformer_core.model.layers import dropout_kernels as kernels

        result = kernels.positive(x, _seed(), p)
        ctx.save_for_backward(result)
        ctx.p, ctx.kernels = p, kernels
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return ctx.kernels.where_positive(grad, result, ctx.p), None
