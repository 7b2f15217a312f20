"""Whole replicas on every rank: DistributedDataParallel (Li et al., VLDB 2020, arXiv 2006.15704), and
replicas that synchronise only every few steps."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from schemas.config.parallel import Ddp, LocalSteps, Machine
from schemas.config.training import Accumulation
from transformer_core.parallel.hooks import EmulatedLink, Hook, build_hook
from transformer_core.parallel.link_times import burst_seconds
from transformer_core.parallel.messages import MIB, Traffic, buckets, copy_back, flatten, gradients
from transformer_core.parallel.strategy import ProcessGroupStrategy
from transformer_core.parallel.topology import Process, emulated_link


class DdpStrategy(ProcessGroupStrategy):
    """Replicas that start equal and all-reduce their gradients, in buckets, during backward.

    Without ``overlap`` ranks all-reduce buckets of the same size after backward.
    """

    averages = True

    def __init__(
        self, spec: Ddp, process: Process, machine: Machine, accumulation: Accumulation
    ) -> None:
        super().__init__(process, machine)
        self.spec = spec
        self.every = accumulation.synchronise == "every"
        self.reductions_per_step = accumulation.micro_batches if self.every else 1
        self.slow_link = emulated_link(machine)
        self.burst = burst_seconds(machine.link.bandwidth) if machine.link else 0.0
        self.module: DistributedDataParallel | None = None
        self.hook: Hook | None = None
        self.traffic = Traffic()
        self.reductions = 0
        self.micro_batches = 0
        self.late_buckets: list[int] = []
        self.reduced_buckets = 0

    def wrap(self, module: nn.Module) -> nn.Module:
        self.module = DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.spec.bucket_mb,
            gradient_as_bucket_view=self.spec.bucket_view,
            static_graph=self.spec.static_graph,
        )
        # The reducer frees the process group without letting go of the GIL, for which a thread of
        # gloo may wait to free its last work: both would wait forever. What Python holds of the
        # group lets go of it, and is freed last if it is the last attribute:
        # https://github.com/pytorch/pytorch/issues/56297
        self.module.process_group = vars(self.module).pop("process_group")
        if self.spec.hook is not None:
            per_step = self.reductions_per_step
            self.hook = build_hook(
                self.spec.hook, self.traffic, self.device, per_step, self.timeout
            )
        if self.slow_link is not None:
            inner = self.hook or Hook(self.traffic)
            self.hook = EmulatedLink(inner, self.slow_link, None, self.device, self.burst)
        if self.hook is not None:
            self.hook.register(self.module)
        self.replica = self.module.module
        return self.module

    @contextlib.contextmanager
    def sync_context(self, last: bool) -> Iterator[None]:
        assert self.module is not None, "wrap comes first"
        self.micro_batches += 1
        reduce = last or self.every
        self.reductions += reduce
        if reduce and self.spec.overlap:
            yield
            return
        with self.module.no_sync():
            yield
        if reduce and not last:
            self._reduce_late()

    def reduce_gradients(self) -> None:
        if not self.spec.overlap:
            self._reduce_late()

    @torch.no_grad()
    def _reduce_late(self) -> None:
        """Averages the gradients of all ranks, in the order and buckets of DDP."""
        assert self.replica is not None, "wrap comes first"
        world_size = self.process.world_size
        found = gradients(self.replica.parameters())[::-1]
        groups = buckets(found, self.spec.bucket_mb * MIB)
        self.late_buckets = [sum(g.nbytes for g in group) for group in groups]
        for group in groups:
            flat = flatten(group).div_(world_size)
            dist.all_reduce(flat)
            copy_back(flat, group)
            self.traffic.add_all_reduce(flat.nbytes, world_size)
            self.reduced_buckets += 1

    def held_back(self) -> dict[Tensor, Tensor] | None:
        return None if self.hook is None else self.hook.held_back()

    def memory(self) -> dict[str, Tensor]:
        return {} if self.hook is None else self.hook.memory(self._names())

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        if self.hook is not None:
            self.hook.remember(memory, self._names())

    def _names(self) -> dict[Tensor, str]:
        assert self.replica is not None, "wrap comes first"
        return {p: name for name, p in self.replica.named_parameters() if p.requires_grad}

    def communication(self) -> dict[str, Any] | None:
        first, rebuilt = self._buckets()
        traffic, all_reduces = self.traffic, self.reduced_buckets
        if self.spec.overlap and self.reductions:
            # DDP rebuilds its buckets once, after the first reduction, in the order of gradients.
            all_reduces = len(first) + (self.reductions - 1) * len(rebuilt)
            if self.hook is None:
                payload = sum(first) * self.reductions
                traffic = Traffic()
                traffic.add_all_reduce(payload, self.process.world_size, all_reduces)
        return {
            "bucket_bytes": rebuilt,
            "synchronised_micro_batches": self.reductions,
            "micro_batches": self.micro_batches,
            "all_reduces": all_reduces,
            "traffic": traffic.of_all_ranks(self.gather),
        }

    def _buckets(self) -> tuple[list[int], list[int]]:
        """Bytes of the buckets of the first reduction, and of all later ones."""
        assert self.module is not None, "wrap comes first"
        if not self.spec.overlap:
            return self.late_buckets, self.late_buckets
        # torch has no public way to read the rebuilt buckets.
        data = self.module._get_ddp_logging_data()
        first, rebuilt = (
            [int(size) for size in str(data.get(name, "")).split(",") if size.strip()]
            for name in ("bucket_sizes", "rebuilt_bucket_sizes")
        )
        return first, rebuilt or first

    def close(self) -> None:
        if self.hook is not None:
            self.hook.close()
        if self.module is not None:
            # They hold the process group. If they were its last holders, its end would wait, with
            # the interpreter locked, for gloo threads that may be waiting for the interpreter.
            del self.module.reducer, self.module.logger
        super().close()


class LocalStepsStrategy(ProcessGroupStrategy):
    """Replicas that train separately and synchronise every few steps (DiLoCo, arXiv 2311.08105).

    Every rank updates its own replica with its share of each batch. At a synchronisation, the average
    change since the last one is the gradient of an outer step, from which all ranks continue.
    """

    averages = True  # approximately, since the loop divides by the tokens of all ranks
    apart = True

    def __init__(self, spec: LocalSteps, process: Process, machine: Machine) -> None:
        super().__init__(process, machine)
        self.spec = spec
        self.traffic = Traffic()
        self.steps = self.meetings = 0
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
        self.meetings += 1
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
        kept = {f"{n}/met": met for n, met in enumerate(self.met)}
        kept |= {f"{n}/momentum": momentum for n, momentum in enumerate(self.momentum)}
        return kept | {"steps": torch.tensor(self.steps)}

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        self.steps = int(memory["steps"])
        for n, (met, momentum) in enumerate(zip(self.met, self.momentum, strict=True)):
            met.copy_(memory[f"{n}/met"])
            momentum.copy_(memory[f"{n}/momentum"])

    def communication(self) -> dict[str, Any] | None:
        return {
            "meetings": self.meetings,
            "traffic": self.traffic.of_all_ranks(self.gather),
        }
