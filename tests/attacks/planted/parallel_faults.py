"""Strategies and hooks of several ranks."""

import itertools
from typing import Any

import torch
import torch.distributed as dist

from schemas.base import merge
from tests.attacks.planted import changes
from tests.attacks.planted.fault import (
    faults_of,
    in_central,
    in_ddp,
    in_four,
    in_four_shards,
    in_fsdp,
    in_groups,
    in_hooks,
    in_tensor,
)
from tests.attacks.planted.planting import (
    Patch,
    arguments,
    around_step,
    calling,
    put,
    result,
    swap,
)
from transformer_core.models import objective
from transformer_core.models.dropout import Dropout
from transformer_core.models.sublayers import Attention
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.parallel import central, ddp, fsdp, hooks, tensor_parallel
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.tensor_parallel import TensorParallelStrategy
from transformer_core.training import assemble, evaluation, loop, precision

in_lists = faults_of("unpadded", ranks=2)


def zeroed(gradients: Any) -> None:
    for p in gradients:
        if p.grad is not None:
            p.grad.zero_()


@in_ddp("every rank divides by its own tokens", objective.Objective, "forward")
@in_lists(
    "every rank divides by its own real tokens",
    objective.Objective,
    "forward",
    change=merge(changes.DDP, changes.FILLED),
)
def own_tokens(real, self, source, given, labels, *rest):
    own = (labels != 0).sum().float()
    everyone = own.clone()
    dist.all_reduce(everyone)
    return real(self, source, given, labels, *rest) * (everyone / dist.get_world_size() / own)


@in_ddp(
    "an early micro-batch stays on its rank",
    ddp.DdpStrategy,
    "sync_context",
    change=changes.DDP | changes.TWO,
)
@in_lists(
    "an early micro-batch of real tokens stays on its rank",
    ddp.DdpStrategy,
    "sync_context",
    change=merge(changes.DDP | changes.TWO, changes.FILLED),
)
def forgets_early(real, self, last):
    if last:
        zeroed(self.replica.parameters())
    return real(self, last)


not_averaged = put(ddp.DdpStrategy, "loss_scale", 1.0)
in_ddp("the average over ranks taken for the sum", not_averaged)
alone = put(ddp.DdpStrategy, "sync_context", lambda self, last: self.module.no_sync())
in_ddp("never synchronised", alone)
same_share = put(Strategy, "share", property(lambda self: (0, 2)))
in_ddp("both ranks read the same share", same_share)


@in_ddp("rank 1 counts for nothing", precision.Precision, "backward")
def nothing_from_rank_1(real, self, loss):
    return real(self, loss * (dist.get_rank() != 1))


@in_ddp("replicas that start apart", ddp.DdpStrategy, "wrap")
def other_replica(real, self, module):
    wrapped = real(self, module)
    if self.process.rank == 1:
        with torch.no_grad():
            next(iter(module.parameters())).mul_(1.001)
    return wrapped


@in_ddp(
    "late buckets summed, not averaged", ddp.DdpStrategy, "reduce_gradients", change=changes.LATE
)
def _(real, self):
    return (real(self), [p.grad.mul_(2) for p in self.replica.parameters()])[0]


@in_hooks("a ring that leaves out the end", hooks, "ring_all_reduce", change=changes.RING)
def ring_without(real, values, group, count):
    last = values[-8:].clone()
    real(values, group, count)
    values[-8:] = last


@in_hooks("a ring that adds the first chunk twice", hooks, "ring_all_reduce", change=changes.RING)
def twice_the_first_chunk(real, values, group, count):
    own = values[:8].clone()
    real(values, group, count)
    values[:8] += own * (group.rank() == 0)


@in_hooks("compressed gradients of rank 0 only", hooks.Compressed, "average", **changes.COMPRESSED)
def only_of_rank_0(real, self, bucket):
    if dist.get_rank() == 1:
        bucket.buffer().zero_()
    return real(self, bucket)


@in_hooks("PowerSGD without its memory", hooks.PowerSgd, "__init__", **changes.BY_POWER)
def no_memory(real, self, *args):
    real(self, *args)
    self.state.use_error_feedback = False


@in_fsdp("shards of rank 1 learn 10 % slower", around_step)
def own_rate_on_rank(trainer, before, _):
    if torch.distributed.get_rank() == 1:
        for p, old in zip(trainer.model.parameters(), before, strict=True):
            p.copy_(old + (p - old) * 0.9)


in_fsdp("FSDP without the sum over ranks", put(fsdp.FsdpStrategy, "loss_scale", 1.0))
in_fsdp("FSDP clips by the norm of a shard", precision, "whole", lambda real, t: real(t) * 0.7)


@in_central("rank 0 updates by its own gradients", central.CentralStrategy, "reduce_gradients")
def _(real, self):
    return self.process.is_main or zeroed([])


all_but_the_last = swap(ddp, "buckets", result(lambda groups: list(groups)[:-1]))
small_buckets = merge(changes.LATE, {"parallel": {"bucket_mb": 0.001}})
in_ddp("the last late bucket is forgotten", all_but_the_last, change=small_buckets)


@in_hooks("a ring that does not divide", hooks.Ring, "_fulfil", change=changes.RING)
def undivided(real, self, future, buffer):
    return real(self, future, buffer.mul_(self.group.size()))


@in_fsdp("one layer is not reduced by FSDP", fsdp.FsdpStrategy, "sync_context")
def one_layer_apart(real, self, last):
    found = real(self, last)
    self.layers[0].set_requires_gradient_sync(False)
    return found


labelled = swap(central, "_fill", arguments(lambda t, rows, first: (t, rows, first or 4)))
pairs = {"batching": {"pairs": 7}}
in_central("rows that fill up a share have labels", labelled, base=pairs)
first_alone = result(lambda losses: losses[:1] if losses.dim() else losses)
in_central(
    "local losses of rank 0 only",
    swap(central, "gather_with_gradient", first_alone),
    change=merge(changes.CENTRAL, {"parallel": {"local_loss": True}}),
)


@in_central(
    "weights are broadcast every other step", central.CentralStrategy, "_broadcast", made=True
)
def stale_on_odd_steps(real):
    count = itertools.count(1)

    def broadcast(self: Any, tensors: Any) -> None:
        call = next(count)
        if call % 2 or call < 3:
            real(self, tensors)

    return broadcast


@in_central("weights are broadcast before the update", central.CentralStrategy, "update")
def early_broadcast(real, self, step):
    self._broadcast([p for p in self.replica.parameters() if p.requires_grad])
    return step() if self.process.is_main else torch.zeros(())


def share(of: Any) -> Any:
    """A patch that gives each rank the share ``of(rank)`` of a batch."""
    return put(Strategy, "share", property(lambda self: of(self.process.rank)))


@in_four("four ranks average in pairs", ddp, "DistributedDataParallel")
def in_pairs(real, module, **named):
    groups = [dist.new_group(pair) for pair in ((0, 1), (2, 3))]
    return real(module, process_group=groups[dist.get_rank() // 2], **named)


in_four("four ranks averaged as two", put(ddp.DdpStrategy, "loss_scale", 2.0))
in_four("the last two of four ranks read one share", share(lambda rank: (min(rank, 2), 4)))
in_four("four ranks read halves", share(lambda rank: (rank % 2, 2)))
uneven = {"batching": {"pairs": 7}}


@in_four("the last of four ranks counts 1 % more", precision.Precision, "backward")
@in_four(
    "the last of four ranks counts 1 % more, with uneven shares",
    precision.Precision,
    "backward",
    base=uneven,
)
def more_from_the_last(real, self, loss):
    return real(self, loss * (1 + 0.01 * (dist.get_rank() == 3)))


@in_four("validation leaves out the last of four ranks", evaluation, "token_loss_sum")
def without_the_last(real, logits, labels, smoothing):
    return real(logits, labels, smoothing) * (dist.get_rank() < 3)


in_four_shards(
    "the sum of four shards taken for that of two", put(fsdp.FsdpStrategy, "loss_scale", 2.0)
)


@in_four_shards("shards are reduced in pairs of four ranks", fsdp, "init_device_mesh")
def two_meshes(real, device, shape):
    return real(device, (2, 2), mesh_dim_names=("apart", "pair"))["pair"]


class Unreduced(tensor_parallel.RowwiseParallel):
    """Its ranks do not add up their parts of a result."""

    @staticmethod
    def _prepare_output_fn(layouts, local, module, outputs, mesh):
        return outputs.to_local()


in_tensor("parts of results are not added up", put(tensor_parallel, "RowwiseParallel", Unreduced))


@in_tensor("columns are divided as if they were of one part", tensor_parallel.Columns, "__init__")
def as_one_part(real, self, parts, rows):
    real(self, 1, rows)


@in_tensor("whole weights of rank 1 drift apart", around_step)
@in_groups("whole weights of a group's second rank drift apart", around_step)
def drift(trainer, *_):
    if dist.get_rank() % 2:
        trainer.model.norm.weight.mul_(1.0001)


unsummed = put(TensorParallelStrategy, "reduce_gradients", lambda self: None)
in_tensor("gradients of a part of the rows are not added up", unsummed, change=changes.SEQUENCE)
in_groups("groups average as four ranks", put(TensorParallelStrategy, "loss_scale", 4.0))
same_rows = put(TensorParallelStrategy, "share", property(lambda self: (0, 2)))
in_groups("both groups read the same share", same_rows)

with_masks = faults_of(
    "dropout", loop, "optimizer_step", ranks=2, **changes.DROPPING | {"change": changes.DDP}
)


@with_masks("rank 1 drops nothing")
def nothing_dropped_on_rank_1(real, trainer, *given):
    trainer.module.train(dist.get_rank() != 1)
    return real(trainer, *given)


@with_masks("rank 1 draws the same masks at every step")
def same_masks_on_rank_1(real, trainer, *given):
    if dist.get_rank() == 1:
        torch.manual_seed(99)
    return real(trainer, *given)


unread = faults_of("dropout", ranks=2, **changes.DROPPING | {"change": changes.CENTRAL})
"""Where one process hands out the rows of all, no masks can be read."""


def on_rank_1(change: Any) -> Patch:
    """Calls change(module) for every module of rank 1's model."""

    def build(real: Any, *args: Any, **named: Any) -> Any:
        model = real(*args, **named)
        for module in model.modules() if dist.get_rank() == 1 else ():
            change(module)
        return model

    return swap(assemble, "build_model", calling(build))


def drops_half(module: Any) -> None:
    if isinstance(module, Dropout):
        module.p /= 2


def attends_to_all(module: Any) -> None:
    if isinstance(module, Attention):
        module.dropout = 0.0


unread("rank 1 drops half as much, unread", on_rank_1(drops_half))
unread("attention of rank 1 drops nothing, unread", on_rank_1(attends_to_all))


@unread("rank 1 trains in evaluation mode, unread", loop, "optimizer_step")
def evaluates_on_rank_1(real, trainer, *given):
    trainer.module.train(dist.get_rank() != 1)
    return real(trainer, *given)


@unread("rank 1 draws the same masks at every pass, unread", EncoderDecoder, "forward")
def same_masks_unread(real, self, *given, **named):
    if dist.get_rank() == 1:
        torch.manual_seed(99)
    return real(self, *given, **named)


@unread("dropout of rank 1 goes on in evaluation, unread", Dropout, "forward")
def drops_in_evaluation_on_rank_1(real, self, x):
    return self.drop(x, self.p) if dist.get_rank() == 1 else real(self, x)
