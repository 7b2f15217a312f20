"""DistributedDataParallel (Li et al., VLDB 2020, arXiv 2006.15704)."""

import contextlib
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from schemas.parallel import Ddp, Machine
from transformer_core.parallel.process_group import ProcessGroupStrategy
from transformer_core.parallel.topology import Process


class DdpStrategy(ProcessGroupStrategy):
    """Replicas that start equal and all-reduce their gradients, in buckets, during backward."""

    def __init__(
        self, spec: Ddp, process: Process, machine: Machine, synchronise_every: bool
    ) -> None:
        super().__init__(process, machine)
        self.spec = spec
        self.synchronise_every = synchronise_every
        self.module: DistributedDataParallel | None = None
        self.reductions = 0
        self.micro_batches = 0

    def wrap(self, module: nn.Module) -> nn.Module:
        self.module = DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.spec.bucket_mb,
            gradient_as_bucket_view=self.spec.bucket_view,
        )
        return self.module

    @property
    def loss_scale(self) -> float:
        # DDP averages over ranks; the loop wants the gradient of the sum.
        return float(self.process.world_size)

    def sync_context(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        assert self.module is not None, "wrap comes first"
        self.micro_batches += 1
        if last or self.synchronise_every:
            self.reductions += 1
            return contextlib.nullcontext()
        return self.module.no_sync()

    def communication(self) -> dict[str, Any] | None:
        assert self.module is not None, "wrap comes first"
        # torch has no public way to read the buckets that it rebuilt after the first step.
        data = self.module._get_ddp_logging_data()
        sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
        buckets = [int(size) for size in sizes.split(",") if size.strip()]
        return {
            "bucket_bytes": buckets,
            "synchronised_micro_batches": self.reductions,
            "micro_batches": self.micro_batches,
            "all_reduces": self.reductions * len(buckets),
        }
