"""Number formats of the forward and backward pass."""

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from schemas.train import AnyPrecision, Bf16, Fp32


class Precision:
    """32-bit floating point; other precisions override what they do differently."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context of the forward pass."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of ``loss`` to the parameters' gradients."""
        loss.backward()

    def step(
        self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip_norm: float
    ) -> torch.Tensor:
        """Clip, update, and return the gradient's norm before clipping, on the device.

        ``clip_norm`` of 0 does not clip.
        """
        limit = clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        return norm


class Autocast(Precision):
    """Matrix products in a 16-bit format, weights and reductions in 32 bit."""

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        self.device_type = device_type
        self.dtype = dtype

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype)


def build_precision(spec: AnyPrecision, device: torch.device) -> Precision:
    """The precision that ``spec`` names."""
    match spec:
        case Fp32():
            return Precision()
        case Bf16():
            return Autocast(device.type, torch.bfloat16)
