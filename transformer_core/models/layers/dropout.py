"""Dropout (JMLR 15, 2014, 1929-1958), one function per kind."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.config.model import AnyDropout, SharedDraws
from transformer_core.models.device_kind import device_kind
from transformer_core.models.layers.fused_dropout import (
    dropout_added,
    dropout_of_relu,
    fits,
    fused_dropout,
)

Drop = Callable[[Tensor, float], Tensor]
"""(x, p) -> x of the same shape: each element 0 with probability p < 1, else times 1 / (1 - p)."""


def torch_dropout(x: Tensor, p: float) -> Tensor:
    """torch's own: on a CPU, a floating-point number is drawn for every element."""
    return F.dropout(x, p) if p else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element of ``x`` with probability ``p`` < 1, and scale the others by 1 / (1 - p).

    On a CPU, torch draws a floating-point number for every element, which takes a visible share of
    a training step. Here one 64-bit draw of the same generator decides four elements, so that
    ``p`` is rounded to a multiple of 2^-16. Elsewhere, and in compiled code, this is torch's own.
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
    """One compiled pass whose mask is made anew in the backward pass, where x is of 32 bits on a
    CPU; else :func:`dropout`."""
    return fused_dropout(x, p) if _is_fused(x, p) else dropout(x, p)


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
        """Dropout of max(x, 0)."""
        if self.fused and self.training and _is_fused(x, self.p):
            return dropout_of_relu(x, self.p)
        dropped: Tensor = self(F.relu(x))
        return dropped

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual`` plus dropout of x, both of one shape."""
        if self.fused and self.training and fits(residual) and _is_fused(x, self.p):
            return dropout_added(residual, x, self.p)
        total: Tensor = residual + self(x)
        return total

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _is_fused(x: Tensor, p: float) -> bool:
    return p > 0.0 and fits(x) and not torch.compiler.is_compiling()
