"""Strategies on torch.distributed process groups."""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from schemas.config.parallel import Machine
from schemas.results import RankPlace, Topology
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.parallel.communication import lost_ranks
from transformer_core.parallel.communication.flat_buffers import MIB, buckets, flatten
from transformer_core.parallel.communication.texts import gather_texts
from transformer_core.parallel.communication.topology import Process, link_in_use
from transformer_core.parallel.strategies.strategy import Strategy


class ProcessGroupStrategy(Strategy):
    """One process per device, joined by NCCL on CUDA and by gloo on CPU.

    A strategy that keeps whole replicas puts its own into ``replica``.
    """

    def __init__(self, process: Process, machine: Machine) -> None:
        super().__init__(process)
        self.replica: nn.Module | None = None
        self.backend = "nccl" if process.device.type == "cuda" else "gloo"
        self.link = link_in_use(machine)
        if not dist.is_initialized():
            self._join(machine)
        everyone = gather_texts(process.place.model_dump_json(), process.device)
        self.places = [RankPlace.model_validate_json(text) for text in everyone]
        # gloo raises an exception when it runs out of time. NCCL ends the process without one, so
        # the roll is called before that.
        deadline = machine.timeout if self.backend == "nccl" else None
        self.roll_call = lost_ranks.begin(process.rank, self.places, deadline)

    def _join(self, machine: Machine) -> None:
        process = self.process
        margin = lost_ranks.MARGIN if self.backend == "nccl" else 0.0
        dist.init_process_group(
            self.backend,
            rank=process.rank,
            world_size=process.world_size,
            timeout=timedelta(seconds=machine.timeout + margin),
            device_id=process.device if process.device.type == "cuda" else None,
        )

    def topology(self) -> Topology:
        return self.process.describe(self.backend, self.places, self.link)

    def batches(self, feed: Feed, epoch: int, batch: int) -> Generator[GlobalBatch, None, None]:
        for item in super().batches(feed, epoch, batch):
            self.progress()
            yield item

    def progress(self) -> None:
        """This rank goes on. The one that does it least often keeps the others waiting."""
        if self.roll_call is not None:
            self.roll_call.progress()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """What may have to wait for other ranks."""
        self.progress()
        yield
        self.progress()

    @torch.no_grad()
    def replica_difference(self) -> float | None:
        if self.replica is None:
            return None
        largest = torch.zeros((), device=self.device)
        for bucket in buckets(self.replica.parameters(), 64 * MIB):
            mine = flatten(bucket)
            first = mine.clone()
            dist.broadcast(first, src=0)
            # Not a number is different from everything; as the largest number it wins the maximum.
            difference = (mine - first).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
            largest = torch.maximum(largest, difference.max().to(largest.dtype))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        values = values.to(self.device, copy=True)
        with self.waiting():
            dist.all_reduce(values)
        return values

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.process.world_size)]
        with self.waiting():
            dist.all_gather(everyone, mine)
        return [tensor.tolist() for tensor in everyone]

    def synchronise(self) -> None:
        with self.waiting():
            super().synchronise()
            dist.barrier()
            super().synchronise()

    def close(self) -> None:
        if self.roll_call is not None:
            self.roll_call.close()
        if dist.is_initialized():
            dist.destroy_process_group()
