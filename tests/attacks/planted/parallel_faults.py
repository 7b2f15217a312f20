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
    LATE,
    RING,
    TWO,
    in_central,
    in_ddp,
    in_fsdp,
    in_hooks,
)
from tests.attacks.planted.planting import result, swap
from transformer_core.models import objective
from transformer_core.parallel import central, ddp, fsdp, hooks
from transformer_core.parallel.strategy import Strategy
from transformer_core.training import precision


def zeroed(gradients: Any) -> None:
    for p in gradients:
        if p.grad is not None:
            p.grad.zero_()


def on_rank(number: int, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
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


in_ddp(
    "the average over ranks taken for the sum",
    lambda: mock.patch.object(ddp.DdpStrategy, "loss_scale", 1.0),
)


@in_ddp("never synchronised", ddp.DdpStrategy, "sync_context")
def _(real, self, last):
    return self.module.no_sync()


in_ddp(
    "rank 1 counts for nothing",
    swap(
        precision.Precision,
        "backward",
        on_rank(1, lambda _: lambda self, loss: (loss * 0).backward()),
    ),
)
in_ddp(
    "both ranks read the same share",
    lambda: mock.patch.object(Strategy, "share", property(lambda self: (0, 2))),
)


@in_ddp("replicas that start apart", ddp.DdpStrategy, "wrap")
def other_replica(real, self, module):
    wrapped = real(self, module)
    if self.process.rank == 1:
        with torch.no_grad():
            next(iter(module.parameters())).mul_(1.001)
    return wrapped


@in_ddp("late buckets summed, not averaged", ddp.DdpStrategy, "reduce_gradients", change=LATE)
def _(real, self):
    return (real(self), [p.grad.mul_(2) for p in self.replica.parameters()])[0]


@in_hooks("a ring that leaves out the end", hooks, "ring_all_reduce", change=RING)
def ring_without(real, values, group, count):
    last = values[-8:].clone()
    real(values, group, count)
    values[-8:] = last


in_hooks(
    "compressed gradients of rank 0 only",
    swap(
        hooks.Compressed,
        "average",
        on_rank(1, lambda real: lambda self, b: (b.buffer().zero_(), real(self, b))[1]),
    ),
    **COMPRESSED,
)


@in_hooks("PowerSGD without its memory", hooks.PowerSgd, "__init__", **BY_POWER)
def no_memory(real, self, *args):
    real(self, *args)
    self.state.use_error_feedback = False


in_fsdp(
    "FSDP without the sum over ranks",
    lambda: mock.patch.object(fsdp.FsdpStrategy, "loss_scale", 1.0),
)
in_fsdp("FSDP clips by the norm of a shard", precision, "whole", lambda real, t: real(t) * 0.7)


@in_central("rank 0 updates by its own gradients", central.CentralStrategy, "reduce_gradients")
def _(real, self):
    return self.process.is_main or zeroed([])


in_ddp("every rank divides by its own tokens", swap(objective.Objective, "forward", own_tokens))
in_ddp(
    "an early micro-batch stays on its rank",
    swap(ddp.DdpStrategy, "sync_context", forgets_early),
    change=DDP | TWO,
)
in_ddp(
    "the last late bucket is forgotten",
    swap(ddp, "buckets", result(lambda groups: list(groups)[:-1])),
    change=LATE | {"parallel": {"kind": "ddp", "overlap": False, "bucket_mb": 0.001}},
)


@in_hooks("a ring that does not divide", hooks.Ring, "_fulfil", change=RING)
def undivided(real, self, future, buffer):
    return real(self, future, buffer.mul_(self.group.size()))


@in_fsdp("one layer is not reduced by FSDP", fsdp.FsdpStrategy, "sync_context")
def one_layer_apart(real, self, last):
    found = real(self, last)
    self.layers[0].set_requires_gradient_sync(False)
    return found


@in_central(
    "rows that fill up a share have labels", central, "_fill", base={"batching": {"pairs": 7}}
)
def _(real, t, rows, first):
    return real(t, rows, first or 4)


in_central(
    "local losses of rank 0 only",
    swap(
        central,
        "gather_with_gradient",
        result(lambda losses: losses[:1] if losses.dim() else losses),
    ),
    change=CENTRAL | {"parallel": {"kind": "central", "local_loss": True}},
)


@in_central("weights are broadcast before the update", central.CentralStrategy, "update")
def early_broadcast(real, self, step):
    self._broadcast([p for p in self.replica.parameters() if p.requires_grad])
    return step() if self.process.is_main else torch.zeros(())
