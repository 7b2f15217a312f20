"""Replicas that train apart and meet every few steps (DiLoCo, arXiv 2311.08105)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from schemas.config.parallel import LocalSteps, Machine
from schemas.errors import Unsupported
from transformer_core.parallel.messages import MIB, Traffic, buckets, copy_back, flatten
from transformer_core.parallel.strategy import ProcessGroupStrategy
from transformer_core.parallel.topology import Process


class LocalStepsStrategy(ProcessGroupStrategy):
    """Every rank updates its own replica by its share of each batch. Every few steps the average of
    the changes since the last meeting is the gradient of an outer step, from which all go on."""

    averages = True  # about: the loop divides by the tokens of all ranks

    def __init__(self, spec: LocalSteps, process: Process, machine: Machine) -> None:
        super().__init__(process, machine)
        self.spec = spec
        self.traffic = Traffic()
        self.steps = 0
        self.weights: list[nn.Parameter] = []
        self.met: list[Tensor] = []
        self.momentum: list[Tensor] = []

    def wrap(self, module: nn.Module) -> nn.Module:
        self.weights = [p for p in module.parameters() if p.requires_grad]
        for weight in self.weights:
            dist.broadcast(weight.data, src=0)
        self.met = [weight.detach().clone() for weight in self.weights]
        self.momentum = [torch.zeros_like(weight) for weight in self.met]
        return module

    def update(self, step: Callable[[], Tensor]) -> Tensor:
        norm = step()
        self.steps += 1
        if self.steps % self.spec.every == 0:
            self._meet()
        return norm

    @torch.no_grad()
    def _meet(self) -> None:
        ranks = self.process.world_size
        changes = [met - weight for met, weight in zip(self.met, self.weights, strict=True)]
        for some in buckets(changes, 64 * MIB):
            flat = flatten(some).div_(ranks)
            dist.all_reduce(flat)
            copy_back(flat, some)
            self.traffic.add_all_reduce(flat.nbytes, ranks)
        kept, rate = self.spec.outer_momentum, self.spec.outer_rate
        for weight, met, momentum, change in zip(
            self.weights, self.met, self.momentum, changes, strict=True
        ):
            momentum.mul_(kept).add_(change)
            met.sub_(change.add_(momentum, alpha=kept), alpha=rate)
            weight.copy_(met)

    def memory(self) -> dict[str, Tensor]:
        raise Unsupported(
            "parallel: {kind: local_steps} keeps weights and optimizer state of its own on every "
            "rank, which a checkpoint does not hold: take training.checkpoint_every: 0"
        )

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        self.memory()

    def communication(self) -> dict[str, Any] | None:
        return {
            "meetings": self.steps // self.spec.every,
            "traffic": self.traffic.of_all_ranks(self.gather),
        }
