"""The user's training with techniques applied, a step at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.config.own_training import ImportedTask
from schemas.config.parallel import Fsdp
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.own_training.chunked_head import with_chunked_head
from transformer_core.own_training.user_parts import Parts, checked_loss, load_parts, next_batch
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process
from transformer_core.training.precision import Precision, build_precision

FUSED = {torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD}
"""Optimizers of torch that have a fused kernel for an update."""


class LossModule(nn.Module):
    """Model and loss as one module, so that a wrapped model computes its loss where its logits
    are."""

    def __init__(self, task: ImportedTask, parts: Parts) -> None:
        super().__init__()
        self.task, self.model, self.loss = task, parts.module, parts.loss

    def forward(self, batch: Any) -> Tensor:
        """The mean loss of a batch."""
        return checked_loss(self.task, self.loss(self.model, batch))


@dataclass
class OwnTrainer:
    """Everything that a step of the user's training works with."""

    task: ImportedTask
    strategy: Strategy
    precision: Precision
    parts: Parts
    module: nn.Module
    optimizer: Optimizer
    micro_batches: int
    always_norm: bool
    """Whether the norm of the gradient is worked out where nothing asks for it."""
    device: torch.device
    to_device: Callable[[Any], Any]

    def batch(self) -> Any:
        """The next batch of this rank, where the user's loss wants it."""
        return self.to_device(next_batch(self.task, self.parts.batches))

    def step(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """One update; the mean loss of this rank's batch, and the norm of the gradient of all ranks
        if it was worked out, both on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        pieces = list(divided(batch, self.micro_batches))
        for number, piece in enumerate(pieces):
            with self.strategy.sync_context(last=number == len(pieces) - 1):
                with self.precision.autocast():
                    # Over ranks gradients are averaged, as are losses that are means.
                    loss = self.module(piece) / len(pieces)
                self.precision.backward(loss)
            total = total + loss.detach()
        self.strategy.reduce_gradients()
        if not (self.parts.clip_norm or self.always_norm):
            self.optimizer.step()
            return total, None
        norm = self.precision.step(self.optimizer, self.module.parameters(), self.parts.clip_norm)
        return total, norm


def build_trainer(
    spec: RunSpec, process: Process, wide: bool = False, recorded: bool = False
) -> OwnTrainer:
    """The training of ``spec.task``, an ImportedTask, with what it says is applied.

    ``wide`` computes in 64 bits. ``recorded`` is for certificates: nothing is dropped, and norms
    are worked out. Unsupported where the machine or the user's training cannot.
    """
    task = spec.task
    assert isinstance(task, ImportedTask)
    training = spec.training
    torch.manual_seed(training.seed)
    parts = load_parts(task, process.rank, process.world_size, training.seed)
    if recorded:
        without_dropout(parts.module)
    if wide:
        parts.module.double()
    if "chunked_loss" in task.applied:
        if task.head is None:
            raise Unsupported("chunked_loss needs the name of the output layer: set task.head")
        with_chunked_head(parts.module, task.head)
    parts.module.to(process.device)
    if "compile" in task.applied:
        parts.module.compile()
    strategy = build_strategy(spec.parallel, process, spec.machine, training.accumulation)
    if isinstance(spec.parallel, Fsdp) and task.layers is not None:
        strategy.find_layers = named_layers(task.layers)  # type: ignore[attr-defined]
    module = strategy.wrap(LossModule(task, parts))
    module.train()
    torch.manual_seed(training.seed + process.rank)
    optimizer = parts.optimizer(module.parameters())
    if "fused_optimizer" in task.applied:
        optimizer = fused(optimizer)
    scaled = training.precision.numbers.loss_scaled
    return OwnTrainer(
        task=task,
        strategy=strategy,
        precision=build_precision(training.precision, process.device),
        parts=parts,
        module=module,
        optimizer=optimizer,
        micro_batches=training.accumulation.micro_batches,
        always_norm=recorded or scaled,
        device=process.device,
        to_device=lambda batch: moved(batch, process.device, wide),
    )


def fused(optimizer: Optimizer) -> Optimizer:
    """The same optimizer, before its first step, with torch's fused kernel; Unsupported where it
    has none."""
    kind = type(optimizer)
    if kind not in FUSED:
        known = ", ".join(sorted(one.__name__ for one in FUSED))
        raise Unsupported(f"a {kind.__name__} has no fused kernel; torch has them for {known}")
    if all(group.get("fused") for group in optimizer.param_groups):
        raise Unsupported("the optimizer is already fused")
    groups = [group | {"fused": True, "foreach": False} for group in optimizer.param_groups]
    return kind(groups)  # type: ignore[call-arg]


def without_dropout(module: nn.Module) -> None:
    """Disables dropout layers: ranks and formats draw different random numbers."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, nn.MultiheadAttention | nn.RNNBase):
            part.dropout = 0.0


def named_layers(name: str) -> Callable[[nn.Module], Iterator[nn.Module]]:
    """Returns a function that finds the modules of class ``name`` in a module; Unsupported if it
    has none."""

    def find(module: nn.Module) -> Iterator[nn.Module]:
        found = [part for part in module.modules() if type(part).__name__ == name]
        if not found:
            raise Unsupported(f"task.layers = {name}: the module has no part of that class")
        yield from found

    return find


def moved(batch: Any, device: torch.device, wide: bool = False) -> Any:
    """A batch on ``device``; with ``wide``, its floating-point numbers in 64 bits."""
    if isinstance(batch, Tensor):
        there = batch.to(device, non_blocking=True)
        return there.double() if wide and there.is_floating_point() else there
    if isinstance(batch, dict):
        return {key: moved(value, device, wide) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(moved(value, device, wide) for value in batch)
    return batch


def divided(batch: Any, parts: int) -> Iterator[Any]:
    """A batch in as many equal parts of its samples; Unsupported where they do not divide."""
    if parts == 1:
        yield batch
        return
    count = samples(batch)
    if count % parts:
        raise Unsupported(f"{count} samples of a batch do not make {parts} equal micro-batches")
    size = count // parts
    for number in range(parts):
        yield _rows(batch, slice(number * size, (number + 1) * size))


def samples(batch: Any) -> int:
    """Samples of a batch: the length of the first tensor in it; ValueError if there is none."""
    return len(first_tensor(batch))


def first_tensor(batch: Any) -> Tensor:
    """The first tensor of a batch that has a dimension."""
    waiting = [batch]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Tensor) and value.dim():
            return value
        if isinstance(value, dict):
            waiting = [*value.values(), *waiting]
        elif isinstance(value, tuple | list):
            waiting = [*value, *waiting]
    raise ValueError("a batch has no tensor: remedy: give tensors whose first dimension is samples")


def _rows(batch: Any, rows: slice) -> Any:
    if isinstance(batch, Tensor):
        return batch[rows] if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: _rows(value, rows) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_rows(value, rows) for value in batch)
    return batch
