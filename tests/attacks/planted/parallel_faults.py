"""Strategies and hooks of several ranks."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.attacks.planted.fault import (
    BY_POWER,
    CENTRAL,
    COMPRESSED,
    DDP,
    FSDP,
    LATE,
    RING,
    TWO,
    spread,
)
from tests.attacks.planted.planting import result, swap
from transformer_core.models import objective
from transformer_core.parallel import central, ddp, fsdp
from transformer_core.parallel import hooks as compression
from transformer_core.parallel.strategy import Strategy
from transformer_core.training import precision as autocast


def zeroed(gradients: Any) -> None:
    for p in gradients:
        if p.grad is not None:
            p.grad.zero_()


def on_rank(number: int, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The change on one rank only."""

    def make(real: Any) -> Any:
        import torch.distributed as dist

        return change(real) if dist.get_rank() == number else real

    return make


def own_tokens(real: Any) -> Any:
    def forward(self: Any, source: Tensor, given: Tensor, labels: Tensor, *rest: Any) -> Any:
        import torch.distributed as dist

        own = (labels != 0).sum().float()
        everyone = own.clone()
        dist.all_reduce(everyone)
        return real(self, source, given, labels, *rest) * (everyone / dist.get_world_size() / own)

    return forward


def forgets_early(real: Any) -> Any:
    @contextlib.contextmanager
    def context(self: Any, last: bool) -> Iterator[None]:
        if last:
            zeroed(self.replica.parameters())
        with real(self, last):
            yield

    return context


spread(
    "the average over ranks taken for the sum",
    "DDP",
    lambda: mock.patch.object(ddp.DdpStrategy, "loss_scale", 1.0),
)


@spread("never synchronised", "DDP", ddp.DdpStrategy, "sync_context")
def _(real, self, last):
    return self.module.no_sync()


spread(
    "rank 1 counts for nothing",
    "DDP",
    swap(
        autocast.Precision,
        "backward",
        on_rank(1, lambda _: lambda self, loss: (loss * 0).backward()),
    ),
)
spread(
    "both ranks read the same share",
    "DDP",
    lambda: mock.patch.object(Strategy, "share", property(lambda self: (0, 2))),
)


@spread("replicas that start apart", "DDP", ddp.DdpStrategy, "wrap")
def other_replica(real, self, module):
    wrapped = real(self, module)
    if self.process.rank == 1:
        with torch.no_grad():
            next(iter(module.parameters())).mul_(1.001)
    return wrapped


@spread(
    "late buckets summed, not averaged", "DDP", ddp.DdpStrategy, "reduce_gradients", change=LATE
)
def _(real, self):
    return (real(self), [p.grad.mul_(2) for p in self.replica.parameters()])[0]


@spread("a ring that leaves out the end", "hooks", compression, "ring_all_reduce", change=RING)
def ring_without(real, values, group, count):
    """The last element is not reduced."""
    last = values[-8:].clone()
    real(values, group, count)
    values[-8:] = last


spread(
    "compressed gradients of rank 0 only",
    "hooks",
    swap(
        compression.Compressed,
        "average",
        on_rank(1, lambda real: lambda self, b: (b.buffer().zero_(), real(self, b))[1]),
    ),
    **COMPRESSED,
)


@spread("PowerSGD without its memory", "hooks", compression.PowerSgd, "__init__", **BY_POWER)
def no_memory(real, self, *args):
    real(self, *args)
    self.state.use_error_feedback = False


spread(
    "FSDP without the sum over ranks",
    "FSDP",
    lambda: mock.patch.object(fsdp.FsdpStrategy, "loss_scale", 1.0),
    change=FSDP,
)


@spread("FSDP clips by the norm of a shard", "FSDP", autocast, "whole", change=FSDP)
def _(real, t):
    return real(t) * 0.7


@spread(
    "rank 0 updates by its own gradients",
    "central",
    central.CentralStrategy,
    "reduce_gradients",
    change=CENTRAL,
)
def _(real, self):
    return self.process.is_main or zeroed([])


spread(
    "every rank divides by its own tokens", "DDP", swap(objective.Objective, "forward", own_tokens)
)
spread(
    "an early micro-batch stays on its rank",
    "DDP",
    swap(ddp.DdpStrategy, "sync_context", forgets_early),
    change=DDP | TWO,
)
spread(
    "the last late bucket is forgotten",
    "DDP",
    swap(ddp, "buckets", result(lambda groups: list(groups)[:-1])),
    change=LATE | {"parallel": {"kind": "ddp", "overlap": False, "bucket_mb": 0.001}},
)


@spread("a ring that does not divide", "hooks", compression.Ring, "_fulfil", change=RING)
def undivided(real, self, future, buffer):
    return real(self, future, buffer.mul_(self.group.size()))


@spread("one layer is not reduced by FSDP", "FSDP", fsdp.FsdpStrategy, "sync_context", change=FSDP)
def one_layer_apart(real, self, last):
    found = real(self, last)
    self.layers[0].set_requires_gradient_sync(False)
    return found


@spread(
    "rows that fill up a share have labels",
    "central",
    central,
    "_fill",
    change=CENTRAL,
    base={"batching": {"pairs": 7}},
)
def _(real, t, rows, first):
    return real(t, rows, first or 4)


spread(
    "local losses of rank 0 only",
    "central",
    swap(
        central,
        "gather_with_gradient",
        result(lambda losses: losses[:1] if losses.dim() else losses),
    ),
    change=CENTRAL | {"parallel": {"kind": "central", "local_loss": True}},
)


@spread(
    "weights are broadcast before the update",
    "central",
    central.CentralStrategy,
    "update",
    change=CENTRAL,
)
def early_broadcast(real, self, step):
    self._broadcast([p for p in self.replica.parameters() if p.requires_grad])
    return step() if self.process.is_main else torch.zeros(())
