"""An optimizer step whose memory is followed, or whose moments are watched."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.measure.memory.anatomy.storages import Interval, StepMemory, StorageTracker
from transformer_core.training.assemble import Trainer
from transformer_core.training.loop import optimizer_step
from transformer_core.training.precision import Precision

LEARNING_RATE = 1e-4
"""Small: what the steps learn does not matter, but their numbers must stay finite."""


class WatchedPrecision(Precision):
    """``inner`` that tells ``watch`` when a ``forward``, a ``backward`` and the ``update`` end."""

    def __init__(self, inner: Precision, watch: Callable[[str], None]) -> None:
        self.inner = inner
        self.watch = watch

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return self.inner.autocast()

    def backward(self, loss: Tensor) -> None:
        self.watch("forward")
        self.inner.backward(loss)
        self.watch("backward")

    def step(
        self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip_norm: float
    ) -> Tensor:
        norm = self.inner.step(optimizer, parameters, clip_norm)
        self.watch("update")
        return norm


def watched_step(trainer: Trainer, batch: GlobalBatch, watch: Callable[[str], None]) -> None:
    """One optimizer step that tells ``watch`` of its moments: see :class:`WatchedPrecision`."""
    precision = WatchedPrecision(trainer.precision, watch)
    optimizer_step(replace(trainer, precision=precision), batch, LEARNING_RATE)


def followed_step(
    trainer: Trainer,
    batch: GlobalBatch,
    tracker: StorageTracker,
    watch: Callable[[str], None] = lambda moment: None,
) -> StepMemory:
    """One optimizer step inside ``tracker``, and what its memory was for."""
    phases: list[Interval] = []
    begin = tracker.operations

    def seen(moment: str) -> None:
        nonlocal begin
        if moment == "backward":
            found = (parameter.grad for parameter in trainer.module.parameters())
            tracker.label([gradient for gradient in found if gradient is not None], "gradients")
        if moment in ("forward", "backward"):
            phases.append(Interval(moment, begin, tracker.operations))
            begin = tracker.operations
        watch(moment)

    tracker.label(trainer.model.parameters(), "weights")
    tracker.label(tables(trainer.model), "other")
    for micro in batch.micro_batches:
        tracker.label((micro.source, micro.target_input, micro.target_output), "other")
    with tracker.saving():
        watched_step(trainer, batch, seen)
    tracker.label(optimizer_tensors(trainer.optimizer), "optimizer")
    phases.append(Interval("update", begin, tracker.operations))
    return StepMemory(tracker, phases)


def tables(model: nn.Module) -> list[Tensor]:
    """Buffers, and the tensors that modules keep as plain attributes or in a dictionary."""
    found = list(model.buffers())
    for module in model.modules():
        for value in vars(module).values():
            values = value.values() if isinstance(value, dict) else (value,)
            found += [one for one in values if isinstance(one, torch.Tensor)]
    return [one for one in found if not isinstance(one, nn.Parameter)]


def optimizer_tensors(optimizer: Optimizer) -> list[Tensor]:
    """What the optimizer keeps between steps."""
    entries = (value for entry in optimizer.state.values() for value in entry.values())
    return [value for value in entries if isinstance(value, torch.Tensor)]
