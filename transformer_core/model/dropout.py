"""Dropout (JMLR 15, 2014, 1929-1958), with cheaper random numbers on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element of ``x`` with probability ``p`` < 1, and scale the others by 1 / (1 - p).

    On a CPU, torch draws a floating-point number for every element, which takes a visible share of
    a training step. Here one 64-bit draw of the same generator decides four elements, so that
    ``p`` is rounded to a multiple of 2^-16. Elsewhere, and in compiled code, this is torch's own.
    """
    if p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    lanes = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = lanes >= round(p * 2**16) - 2**15
    return x * kept.to(x.dtype).mul_(1 / (1 - p))


class Dropout(nn.Module):
    """:func:`dropout` in training mode, nothing in evaluation mode."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> the same shape."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
