"""Dropout (JMLR 15, 2014, 1929-1958), one function per kind.

On a CPU, the fused kind computes dropout and an adjacent sum, ReLU or softmax in one pass, and stores
no masks.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from schemas.config.model import AnyDropout, SharedDraws
from transformer_core.models.device_kind import device_kind

Drop = Callable[[Tensor, float], Tensor]
"""(x, p) -> the same shape: each element is 0 with probability p < 1, else times 1 / (1 - p)."""


def torch_dropout(x: Tensor, p: float) -> Tensor:
    """torch's own dropout, which on a CPU draws a floating-point number for every element."""
    return F.dropout(x, p) if p else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeroes each element of ``x`` with probability ``p`` < 1, and scales the others by 1 / (1 - p).

    On a CPU, torch draws a floating-point number for every element, which takes a visible share of
    a training step. Here one 64-bit draw of the same generator decides four elements, which rounds
    ``p`` to a multiple of 2^-16. On other devices, and in compiled code, this is torch's own.
    """
    if p == 0.0:
        return x
    if torch.compiler.is_compiling() or device_kind(x) != "cpu":
        return F.dropout(x, p)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    lanes = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = lanes >= round(p * 2**16) - 2**15
    return x * kept.to(x.dtype).mul_(1 / (1 - p))


def fused(x: Tensor, p: float) -> Tensor:
    """One compiled pass, whose mask the backward pass computes again, if the loops take x; otherwise
    :func:`dropout`."""
    return _Kept.apply(x, p) if _is_fused(x, p) else dropout(x, p)


DROPOUTS: dict[str, Drop] = {"torch": torch_dropout, "shared_draws": dropout, "fused": fused}
"""Dropout by the ``kind`` of its schema."""

_SHARED_DRAWS = SharedDraws()


class Dropout(nn.Module):
    """Dropout of one kind in training mode, nothing in evaluation mode."""

    def __init__(self, p: float, method: AnyDropout = _SHARED_DRAWS) -> None:
        super().__init__()
        self.p = p
        self.drop = DROPOUTS[method.kind]
        self.fused = method.kind == "fused"

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> the same shape."""
        return self.drop(x, self.p) if self.training else x

    def of_relu(self, x: Tensor) -> Tensor:
        if self.fused and self.training and _is_fused(x, self.p):
            return _OfRelu.apply(x, self.p)
        return self(F.relu(x))

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual`` plus dropout of x, both of one shape."""
        if self.fused and self.training and fits(residual) and _is_fused(x, self.p):
            return _Added.apply(residual, x, self.p)
        return residual + self(x)


def _is_fused(x: Tensor, p: float) -> bool:
    return p > 0.0 and fits(x) and not torch.compiler.is_compiling()


def fits(x: Tensor) -> bool:
    """Whether the compiled loops take x: a plain CPU tensor in 32 bits or bfloat16."""
    plain = type(x) in (Tensor, nn.Parameter, FakeTensor)
    return plain and device_kind(x) == "cpu" and x.dtype in (torch.float32, torch.bfloat16)


def attention_weights(scores: Tensor, mask: Tensor | None, causal: bool, p: float) -> Tensor:
    """Dropout of the softmax of scores [b, h, n, m], which it may overwrite; mask and ``causal`` are
    those of :mod:`transformer_core.models.attention`."""
    return _Weights.apply(scores, mask, causal, p)


def _seed() -> int:
    """Draws the seed of a call from torch's generator, so that a checkpoint can restore it."""
    return int(torch.empty((), dtype=torch.int64).random_())


def _loops() -> Any:
    # Imported late, because the compiler takes half a second in every process.
    from transformer_core.models import compiled_loops

    return compiled_loops


class _Kept(torch.autograd.Function):
    """x, p -> the same shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.seed, ctx.p = _seed(), p
        return _loops().kept(x, ctx.seed, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _loops().kept(grad, ctx.seed, ctx.p), None


class _Added(torch.autograd.Function):
    """residual, x, p -> the same shape."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, p: float) -> Tensor:
        ctx.seed, ctx.p, ctx.format = _seed(), p, x.dtype
        return _loops().added(residual, x, ctx.seed, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, _loops().kept(grad, ctx.seed, ctx.p, ctx.format), None


class _OfRelu(torch.autograd.Function):
    """x, p -> the same shape. Saves the result for backward, which the next layer saves anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        result = _loops().positive(x, _seed(), p)
        ctx.save_for_backward(result)
        ctx.p = p
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return _loops().where_positive(grad, result, ctx.p), None


class _Weights(torch.autograd.Function):
    """scores [b, h, n, m], mask, causal, p -> [b, h, n, m]. Saves the softmax for backward."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, causal: bool, p: float) -> Tensor:
        ctx.seed, ctx.p = _seed() if p else 0, p
        softmax, weights = _loops().weights_of(scores.detach(), mask, causal, ctx.seed, p)
        ctx.save_for_backward(softmax)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (softmax,) = ctx.saved_tensors
        return _loops().gradient_of(grad, softmax, ctx.seed, ctx.p), None, None, None
