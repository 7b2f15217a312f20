"""What the training loop asks of every parallel strategy."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from transformer_core.parallel.topology import Process


class Strategy:
    """One process on one device; other strategies override what they do differently.

    The loop calls :meth:`wrap` once, :meth:`sync_context` around forward and backward of every
    micro-batch, and :meth:`reduce_gradients` before the optimizer's step. After that the gradient
    on every rank is that of the *sum* of all ranks' losses.
    """

    backend: str | None = None

    def __init__(self, process: Process) -> None:
        self.process = process
        self.device = process.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module that the loop calls in place of ``module``."""
        return module

    @property
    def loss_scale(self) -> float:
        """Factor on the loss that undoes any averaging over ranks."""
        return 1.0

    def sync_context(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Context of a micro-batch's forward and backward; ``last`` of its optimizer step."""
        return contextlib.nullcontext()

    def reduce_gradients(self) -> None:
        """Called after the last backward and before the optimizer's step."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum of a small tensor over all ranks, on every rank."""
        return values

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """``values`` of every rank, in the order of ranks; of equal length on all ranks."""
        return [list(values)]

    def synchronise(self) -> None:
        """Wait until every rank's device has done all its work: the points between times."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def communication(self) -> dict[str, Any] | None:
        """What is known of the traffic, for the report; null where there is none."""
        return None

    def close(self) -> None:
        """Leave the process group."""
