"""One process reads, gathers and updates for all devices: torch.nn.DataParallel, and the same scheme
on a process group, with rank 0 as the center."""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from schemas.config.parallel import Central, DataParallel, Machine
from schemas.config.training import Accumulation
from schemas.errors import Unsupported
from transformer_core.data.batching.collate import NOTHING, Batch, Known
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.objective import Objective
from transformer_core.parallel.messages import (
    MIB,
    Hub,
    buckets,
    copy_back,
    flatten,
    gather_with_gradient,
    gradients,
)
from transformer_core.parallel.strategy import ProcessGroupStrategy, Strategy
from transformer_core.parallel.topology import Process

BUCKET_BYTES = 10 * MIB  # size of a message with weights or gradients, as in torch.nn.DataParallel


class CentralStrategy(ProcessGroupStrategy):
    """Rank 0 reads batches and scatters them, gathers the logits, computes the loss and updates.

    The others lend it their devices: they get the weights and a share of the rows, and send back
    logits (with ``local_loss`` a number) and gradients. They keep no optimizer state.

    Rank 0 broadcasts the weights after every update, so all ranks have them for a validation;
    DataParallel instead creates its replicas in every forward. Ranks reduce gradients to rank 0
    after the last micro-batch, or after each as DataParallel must.
    """

    def __init__(
        self, spec: Central, process: Process, machine: Machine, accumulation: Accumulation
    ) -> None:
        super().__init__(process, machine)
        self.spec = spec
        self.micro_batches = accumulation.micro_batches
        self.every = accumulation.synchronise == "every"
        self.hub = Hub(process, self.timeout)

    @property
    def share(self) -> tuple[int, int]:
        return 0, 1

    @property
    def validation_share(self) -> tuple[int, int]:
        return super().share

    def batches(self, feed: Feed, epoch: int, batch: int) -> Generator[GlobalBatch, None, None]:
        """The batches on rank 0; on other ranks their counts and shapes, without reading data."""
        if not self.process.is_main:
            numbers = [0] * (6 + 4 * self.micro_batches)
            while True:
                item = _described(self.hub.broadcast_counts(numbers))
                self.progress()
                yield item
        with contextlib.closing(feed.batches(epoch, batch)) as source:
            for item in source:
                self.hub.broadcast_counts(_description(item))
                self.progress()
                yield item

    def wrap(self, module: nn.Module) -> nn.Module:
        self.replica = module
        self._broadcast([*module.parameters(), *module.buffers()])
        return CentralObjective(module, self.hub, self.spec.local_loss)

    @contextlib.contextmanager
    def sync_context(self, last: bool) -> Iterator[None]:
        yield
        if self.every and not last:
            self.reduce_gradients()

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        assert self.replica is not None, "wrap comes first"
        found = gradients(self.replica.parameters())
        for bucket in buckets(found, BUCKET_BYTES):
            flat = flatten(bucket)
            self.hub.reduce("gradients", flat)
            if self.process.is_main:
                copy_back(flat, bucket)
        if not self.process.is_main:
            for parameter in self.replica.parameters():
                parameter.grad = None

    def update(self, step: Callable[[], Tensor]) -> Tensor:
        norm = step() if self.process.is_main else torch.zeros((), device=self.device)
        self.weights_exchanged()
        return norm

    def weights_exchanged(self) -> None:
        assert self.replica is not None, "wrap comes first"
        self._broadcast([p for p in self.replica.parameters() if p.requires_grad])

    @torch.no_grad()
    def _broadcast(self, tensors: list[Tensor]) -> None:
        for bucket in buckets(tensors, BUCKET_BYTES):
            flat = flatten(bucket)
            self.hub.broadcast("weights", flat)
            if not self.process.is_main:
                copy_back(flat, bucket)

    def communication(self) -> dict[str, Any] | None:
        return {"traffic": self.hub.traffic.of_all_ranks(self.gather)}


class CentralObjective(nn.Module):
    """An objective with the batch and the loss of rank 0; on every other rank the loss is 0.

    Backward propagates the gradient of rank 0's loss to the parameters of all ranks.
    """

    def __init__(self, module: nn.Module, hub: Hub, local_loss: bool) -> None:
        super().__init__()
        self.objective = module
        self.hub = hub
        self.local_loss = local_loss

    def forward(
        self, source: Tensor, target_input: Tensor, target_output: Tensor, known: Known = NOTHING
    ) -> Tensor:
        """Loss sum, a scalar, from source [b, s] and target input and output [b, t].

        Ranks other than 0 only use their shapes. Since we add rows, no rank can use ``known``.
        """
        columns = [source, target_input, target_output]
        firsts = [EOS, BOS, PAD]
        if not self.local_loss:
            # Rank 0 keeps the labels, since it gets the logits.
            del columns[2], firsts[2]
        own = self._scatter_rows(columns, firsts)
        if self.local_loss:
            return gather_with_gradient(self.objective(*own)[None], "losses", self.hub).sum()
        objective = cast(Objective, self.objective)
        own_logits = objective.logits(own[0], own[1])
        logits = gather_with_gradient(own_logits, "logits", self.hub)
        if not self.hub.is_main:
            return logits
        return objective.loss(logits, _fill(target_output, len(logits), PAD))

    def _scatter_rows(self, columns: list[Tensor], firsts: list[int]) -> list[Tensor]:
        """This rank's rows of all ``columns`` [b, n] of rank 0, in one message.

        Adds rows, each a token of ``firsts`` and padding, until all ranks have equally many. They
        have no label, so their loss and gradients are 0.
        """
        widths = [column.size(1) for column in columns]
        share = -(-len(columns[0]) // self.hub.world_size)
        whole = None
        if self.hub.is_main:
            rows = share * self.hub.world_size
            whole = torch.cat(
                [_fill(c, rows, first) for c, first in zip(columns, firsts, strict=True)], dim=1
            )
        own = self.hub.scatter("batch", whole, (share, sum(widths)), torch.int64)
        return [column.contiguous() for column in own.split(widths, dim=1)]


def _fill(tokens: Tensor, rows: int, first: int) -> Tensor:
    """tokens [b, n] -> [rows, n]; each added row has the token ``first``, then padding."""
    filled = tokens.new_full((rows, tokens.size(1)), PAD)
    filled[: len(tokens)] = tokens
    filled[len(tokens) :, :1] = first  # the source of texts has no column to fill
    return filled


def _description(batch: GlobalBatch) -> list[int]:
    """Six counts of the batch, then four of every micro-batch, for :func:`_described`."""
    counts = [batch.epoch, batch.index, batch.pairs]
    counts += [batch.tokens, batch.target_tokens, batch.padded_tokens]
    for micro in batch.micro_batches:
        counts += [*micro.source.shape, micro.target_output.size(1), micro.pairs]
    return counts


def _described(numbers: list[int]) -> GlobalBatch:
    """The batch of :func:`_description`, its tensors on the meta device: shapes only."""
    epoch, index, pairs, tokens, target_tokens, padded_tokens = numbers[:6]
    micro_batches = []
    for start in range(6, len(numbers), 4):
        b, s, t, own_pairs = numbers[start : start + 4]
        source = torch.empty((b, s), dtype=torch.int64, device="meta")
        target = torch.empty((b, t), dtype=torch.int64, device="meta")
        micro_batches.append(Batch(source, target, target, own_pairs))
    return GlobalBatch(epoch, index, micro_batches, pairs, tokens, target_tokens, padded_tokens)


class DataParallelStrategy(Strategy):
    """Every forward copies the model to all GPUs, scatters the batch and gathers the results.

    The first GPU holds the weights, receives logits and gradients, and updates. With ``local_loss``
    each GPU computes its loss, and the first gathers one number per GPU.
    """

    def __init__(self, spec: DataParallel, process: Process, machine: Machine) -> None:
        super().__init__(process)
        self.spec = spec
        if machine.nodes > 1:
            raise Unsupported(
                f"DataParallel drives the GPUs of one host; the study asks for {machine.nodes} hosts"
            )
        if process.device.type != "cuda":
            raise Unsupported(
                "needs at least 2 CUDA devices: on a CPU torch.nn.DataParallel is the plain model"
            )
        if machine.devices_per_node < 2:
            raise Unsupported(
                "needs at least 2 CUDA devices, the study asks for 1: on one device "
                "torch.nn.DataParallel is the plain model"
            )
        self._devices = [torch.device("cuda", i) for i in range(machine.devices_per_node)]
        # One seed would set all GPUs to the same state, but replicas must drop different activations.
        seed = torch.initial_seed()
        for device in self._devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed + device.index)

    @property
    def devices(self) -> list[torch.device]:
        return self._devices

    def wrap(self, module: nn.Module) -> nn.Module:
        return DataParallelObjective(module, self._devices, self.spec.local_loss)


class DataParallelObjective(nn.Module):
    """An objective whose model runs on all ``devices``; its loss on the first or all of them."""

    def __init__(self, module: nn.Module, devices: list[torch.device], local_loss: bool) -> None:
        super().__init__()
        self.replicas = nn.DataParallel(Replica(module, local_loss), devices)
        self.local_loss = local_loss

    def forward(
        self, source: Tensor, target_input: Tensor, target_output: Tensor, known: Known = NOTHING
    ) -> Tensor:
        # torch tells the threads of replicas whether autocast is on, but not its dtype.
        autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        known = Known(known.source_full)  # without lengths, since a replica only has some rows
        gathered = self.replicas(source, target_input, target_output, known, *autocast)
        if self.local_loss:
            return gathered.sum()
        return cast(Objective, self.replicas.module.objective).loss(gathered, target_output)


class Replica(nn.Module):
    """The module that runs on each device: the model, or model and loss."""

    def __init__(self, objective: nn.Module, local_loss: bool) -> None:
        super().__init__()
        self.objective = objective
        self.local_loss = local_loss

    def forward(
        self,
        source: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        known: Known,
        autocast: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        """Logits [b, t, v], or the loss sum [1], of this device's rows."""
        with torch.autocast(source.device.type, dtype=dtype, enabled=autocast):
            if self.local_loss:
                # DataParallel only gathers tensors with at least one dimension.
                return self.objective(source, target_input, target_output, known)[None]
            return cast(Objective, self.objective).logits(source, target_input, known)
