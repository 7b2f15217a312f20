"""Strategies and hooks of several ranks."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.faults.families.fault import (
    CENTRAL,
    COMPRESS,
    FSDP,
    LATE,
    POWER,
    RING,
    spread,
)
from tests.faults.families.planting import swap
from transformer_core.parallel.hooks import compression
from transformer_core.parallel.strategies import central, ddp, fsdp
from transformer_core.parallel.strategies.strategy import Strategy
from transformer_core.train.precision import autocast


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
]
