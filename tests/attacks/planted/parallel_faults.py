"""Strategies and hooks of several ranks."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.attacks.planted.fault import (
    CENTRAL,
    COMPRESS,
    DDP,
    FSDP,
    LATE,
    POWER,
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


def other_replica(real: Any) -> Any:
    def wrap(self: Any, module: nn.Module) -> nn.Module:
        wrapped = real(self, module)
        if self.process.rank == 1:
            with torch.no_grad():
                next(iter(module.parameters())).mul_(1.001)
        return wrapped

    return wrap


def no_memory(real: Any) -> Any:
    def init(self: Any, *args: Any) -> None:
        real(self, *args)
        self.state.use_error_feedback = False

    return init


def ring_without(real: Any) -> Any:
    """The last element is not reduced."""

    def ring(values: Tensor, group: Any, count: Any) -> None:
        last = values[-8:].clone()
        real(values, group, count)
        values[-8:] = last

    return ring


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


def undivided(real: Any) -> Any:
    return lambda self, future, buffer: real(self, future, buffer.mul_(self.group.size()))


def one_layer_apart(real: Any) -> Any:
    def context(self: Any, last: bool) -> Any:
        found = real(self, last)
        self.layers[0].set_requires_gradient_sync(False)
        return found

    return context


def early_broadcast(_: Any) -> Any:
    def update(self: Any, step: Any) -> Tensor:
        self._broadcast([p for p in self.replica.parameters() if p.requires_grad])
        return step() if self.process.is_main else torch.zeros(())

    return update


FAULTS = [
    spread(
        "the average over ranks taken for the sum",
        "DDP",
        lambda: mock.patch.object(ddp.DdpStrategy, "loss_scale", 1.0),
    ),
    spread(
        "never synchronised",
        "DDP",
        swap(ddp.DdpStrategy, "sync_context", lambda _: lambda self, last: self.module.no_sync()),
    ),
    spread(
        "rank 1 counts for nothing",
        "DDP",
        swap(
            autocast.Precision,
            "backward",
            on_rank(1, lambda _: lambda self, loss: (loss * 0).backward()),
        ),
    ),
    spread(
        "both ranks read the same share",
        "DDP",
        lambda: mock.patch.object(Strategy, "share", property(lambda self: (0, 2))),
    ),
    spread("replicas that start apart", "DDP", swap(ddp.DdpStrategy, "wrap", other_replica)),
    spread(
        "late buckets summed, not averaged",
        "DDP",
        swap(
            ddp.DdpStrategy,
            "reduce_gradients",
            lambda real: (
                lambda self: (real(self), [p.grad.mul_(2) for p in self.replica.parameters()])[0]
            ),
        ),
        LATE,
    ),
    spread(
        "a ring that leaves out the end",
        "hooks",
        swap(compression, "ring_all_reduce", ring_without),
        RING,
    ),
    spread(
        "compressed gradients of rank 0 only",
        "hooks",
        swap(
            compression.Compressed,
            "average",
            on_rank(1, lambda real: lambda self, b: (b.buffer().zero_(), real(self, b))[1]),
        ),
        COMPRESS,
        kind="statistical",
    ),
    spread(
        "PowerSGD without its memory",
        "hooks",
        swap(compression.PowerSgd, "__init__", no_memory),
        POWER,
        kind="statistical",
    ),
    spread(
        "FSDP without the sum over ranks",
        "FSDP",
        lambda: mock.patch.object(fsdp.FsdpStrategy, "loss_scale", 1.0),
        FSDP,
    ),
    spread(
        "FSDP clips by the norm of a shard",
        "FSDP",
        swap(autocast, "whole", lambda real: lambda t: real(t) * 0.7),
        FSDP,
    ),
    spread(
        "rank 0 updates by its own gradients",
        "central",
        swap(
            central.CentralStrategy,
            "reduce_gradients",
            lambda real: lambda self: self.process.is_main or zeroed([]),
        ),
        CENTRAL,
    ),
    spread(
        "every rank divides by its own tokens",
        "DDP",
        swap(objective.Objective, "forward", own_tokens),
    ),
    spread(
        "an early micro-batch stays on its rank",
        "DDP",
        swap(ddp.DdpStrategy, "sync_context", forgets_early),
        DDP | TWO,
    ),
    spread(
        "the last late bucket is forgotten",
        "DDP",
        swap(ddp, "buckets", result(lambda groups: list(groups)[:-1])),
        LATE | {"parallel": {"kind": "ddp", "overlap": False, "bucket_mb": 0.001}},
    ),
    spread(
        "a ring that does not divide",
        "hooks",
        swap(compression.Ring, "_fulfil", undivided),
        RING,
    ),
    spread(
        "one layer is not reduced by FSDP",
        "FSDP",
        swap(fsdp.FsdpStrategy, "sync_context", one_layer_apart),
        FSDP,
    ),
    spread(
        "rows that fill up a share have labels",
        "central",
        swap(central, "_fill", lambda real: lambda t, rows, first: real(t, rows, first or 4)),
        CENTRAL,
        base={"batching": {"pairs": 7}},
    ),
    spread(
        "local losses of rank 0 only",
        "central",
        swap(
            central,
            "gather_with_gradient",
            result(lambda losses: losses[:1] if losses.dim() else losses),
        ),
        CENTRAL | {"parallel": {"kind": "central", "local_loss": True}},
    ),
    spread(
        "weights are broadcast before the update",
        "central",
        swap(central.CentralStrategy, "update", early_broadcast),
        CENTRAL,
    ),
]
