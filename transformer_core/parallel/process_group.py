"""Strategies on torch.distributed process groups."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from schemas.parallel import Machine
from transformer_core.parallel.flat import MIB, buckets, flatten
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process


class ProcessGroupStrategy(Strategy):
    """One process per device, joined by NCCL on CUDA and by gloo on CPU.

    A strategy that keeps whole replicas puts its own into ``replica``.
    """

    def __init__(self, process: Process, machine: Machine) -> None:
        super().__init__(process)
        self.replica: nn.Module | None = None
        self.backend = "nccl" if process.device.type == "cuda" else "gloo"
        if not dist.is_initialized():
            dist.init_process_group(
                self.backend,
                rank=process.rank,
                world_size=process.world_size,
                timeout=timedelta(seconds=machine.timeout),
                device_id=process.device if process.device.type == "cuda" else None,
            )

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
        dist.all_reduce(values)
        return values

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.process.world_size)]
        dist.all_gather(everyone, mine)
        return [tensor.tolist() for tensor in everyone]

    def synchronise(self) -> None:
        super().synchronise()
        dist.barrier()
        super().synchronise()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
