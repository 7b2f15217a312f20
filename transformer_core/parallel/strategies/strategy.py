"""What the training loop asks of every parallel strategy."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from schemas.results import Topology
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.parallel.communication.topology import Process


class Objective(Protocol):
    """The module that strategies wrap: its forward is ``loss(model(source, input), output)``."""

    model: nn.Module
    """Logits [b, t, v] from source [b, s] and target input [b, t]."""

    def logits(self, source: Tensor, target_input: Tensor, source_full: bool = False) -> Tensor:
        """The same from the model, told whether no source is known to have padding."""

    def loss(self, logits: Tensor, target_output: Tensor) -> Tensor:
        """Loss sum, a scalar, of logits [b, t, v] and target output [b, t]."""


class Strategy:
    """One process on one device; other strategies override what they do differently.

    The loop calls :meth:`wrap` once, :meth:`sync_context` around forward and backward of every
    micro-batch, :meth:`reduce_gradients` before the optimizer's step, and :meth:`update` for it.
    The gradient that the optimizer then finds is that of the *sum* of all ranks' losses.
    """

    backend: str | None = None

    def __init__(self, process: Process) -> None:
        self.process = process
        self.device = process.device

    @property
    def devices(self) -> list[torch.device]:
        """The devices that this process works on, its own first."""
        return [self.device]

    @property
    def share(self) -> tuple[int, int]:
        """Which share of every global batch this process reads, and how many shares there are."""
        return self.process.rank, self.process.world_size

    def batches(self, feed: Feed, epoch: int, batch: int) -> Generator[GlobalBatch, None, None]:
        """The global batches of ``feed`` from this position on, as this process gets them."""
        return feed.batches(epoch, batch)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module that the loop calls in place of ``module``, an :class:`Objective`."""
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

    def update(self, step: Callable[[], Tensor]) -> Tensor:
        """Update the weights by ``step``, which gives the norm of the gradient; its result."""
        return step()

    def replica_difference(self) -> float | None:
        """Largest absolute difference between a parameter on any rank and on rank 0.

        Called on every rank. Null where there is one copy of the parameters only.
        """
        return None

    def held_back(self) -> dict[Tensor, Tensor] | None:
        """By parameter, what lossy messages have left out of the gradients so far and will return
        in later steps, averaged over ranks. Called on every rank; null where nothing is left out.
        """
        return None

    def memory(self) -> dict[str, Tensor]:
        """What this rank keeps of its messages from step to step, by name: a checkpoint has it, so
        that a run goes on as if it had never stopped."""
        return {}

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Take up what :meth:`memory` gave on this rank."""

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum of a small tensor over all ranks, on every rank."""
        return values

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """``values`` of every rank, in the order of ranks; of equal length on all ranks."""
        return [list(values)]

    def synchronise(self) -> None:
        """Wait until every rank's devices have done all their work: the points between times."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def topology(self) -> Topology:
        """What this run runs on."""
        return self.process.describe(self.backend, [self.process.place], None)

    def communication(self) -> dict[str, Any] | None:
        """What is known of the traffic, for the report; null where there is none.

        Called on every rank.
        """
        return None

    def close(self) -> None:
        """Leave the process group."""
