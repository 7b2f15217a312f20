"""Attention weights in one pass over the scores, on a CPU: no mask of dropout is kept."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transformer_core.model.layers.fused_dropout import seed_of_call


def attention_weights(scores: Tensor, mask: Tensor | None, causal: bool, p: float) -> Tensor:
    """Dropout of the softmax of scores [b, h, n, m], which may be overwritten; mask and ``causal``
    are those of :mod:`transformer_core.model.layers.attention`."""
    result: Tensor = _Weights.apply(scores, mask, causal, p)
    return result


class _Weights(torch.autograd.Function):
    """scores [b, h, n, m], mask, causal, p -> [b, h, n, m]. What is kept is the softmax."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, causal: bool, p: float) -> Tensor:
        # Here, because the compiler takes half a second to import, in every process.
        from transformer_core.model.layers import softmax_kernels as kernels

        ctx.seed, ctx.p, ctx.kernels = seed_of_call() if p else 0, p, kernels
        softmax, weights = kernels.weights_of(scores.detach(), mask, causal, ctx.seed, p)
        ctx.save_for_backward(softmax)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (softmax,) = ctx.saved_tensors
        return ctx.kernels.gradient_of(grad, softmax, ctx.seed, ctx.p), None, None, None
