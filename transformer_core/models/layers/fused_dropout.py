"""Dropout on a CPU in one pass with a sum, a ReLU or a softmax beside it: no masks are kept."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def fits(x: Tensor) -> bool:
    """Whether the compiled loops take x: 32 bits or bfloat16 on a CPU, numbers that are there."""
    plain = type(x) in (Tensor, nn.Parameter)  # a fake tensor has no numbers
    return plain and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)


def fused_dropout(x: Tensor, p: float) -> Tensor:
    """x with each element dropped with probability p, else over 1 - p."""
    result: Tensor = _Kept.apply(x, p)
    return result


def dropout_of_relu(x: Tensor, p: float) -> Tensor:
    """:func:`fused_dropout` of max(x, 0)."""
    result: Tensor = _OfRelu.apply(x, p)
    return result


def dropout_added(residual: Tensor, x: Tensor, p: float) -> Tensor:
    """``residual`` plus :func:`fused_dropout` of x, of its shape, in the format of ``residual``."""
    result: Tensor = _Added.apply(residual, x, p)
    return result


def attention_weights(scores: Tensor, mask: Tensor | None, causal: bool, p: float) -> Tensor:
    """Dropout of the softmax of scores [b, h, n, m], which may be overwritten; mask and ``causal``
    are those of :mod:`transformer_core.models.layers.attention`."""
    result: Tensor = _Weights.apply(scores, mask, causal, p)
    return result


def _seed() -> int:
    """Of one call, from torch's generator, so that a checkpoint or a seed brings it back."""
    return int(torch.empty((), dtype=torch.int64).random_())


class _Kept(torch.autograd.Function):
    """x, p -> the same shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        # Here, because the compiler takes half a second to import, in every process.
        from transformer_core.models.layers import dropout_kernels as kernels

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
        from transformer_core.models.layers import dropout_kernels as kernels

        ctx.seed, ctx.p, ctx.kernels, ctx.format = _seed(), p, kernels, x.dtype
        return kernels.added(residual, x, ctx.seed, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, ctx.kernels.kept(grad, ctx.seed, ctx.p, ctx.format), None


class _OfRelu(torch.autograd.Function):
    """x, p -> the same shape. What is kept is the result, which the next layer keeps anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        from transformer_core.models.layers import dropout_kernels as kernels

        result = kernels.positive(x, _seed(), p)
        ctx.save_for_backward(result)
        ctx.p, ctx.kernels = p, kernels
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return ctx.kernels.where_positive(grad, result, ctx.p), None


class _Weights(torch.autograd.Function):
    """scores [b, h, n, m], mask, causal, p -> [b, h, n, m]. What is kept is the softmax."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, causal: bool, p: float) -> Tensor:
        # Here, because the compiler takes half a second to import, in every process.
        from transformer_core.models.layers import softmax_kernels as kernels

        ctx.seed, ctx.p, ctx.kernels = _seed() if p else 0, p, kernels
        softmax, weights = kernels.weights_of(scores.detach(), mask, causal, ctx.seed, p)
        ctx.save_for_backward(softmax)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (softmax,) = ctx.saved_tensors
        return ctx.kernels.gradient_of(grad, softmax, ctx.seed, ctx.p), None, None, None
