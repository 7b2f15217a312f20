"""What all communication hooks share: what DistributedDataParallel does with gradient buckets.

A hook is called once for every bucket, on the thread of the backward pass, in the same order on all
ranks. It averages the bucket over ranks and gives a future of the result; backward goes on
meanwhile.
"""

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from transformer_core.parallel.communication.traffic import Traffic


class Hook:
    """The backend's own all-reduce, counting its traffic; subclasses average otherwise."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic

    def register(self, module: DistributedDataParallel) -> None:
        """Let ``module`` use this hook."""

        def average(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
            return self.average(bucket)

        module.register_comm_hook(None, average)

    def payload(self, bucket: dist.GradBucket) -> int:
        """Bytes of the bucket on the wire."""
        return bucket.buffer().nbytes

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """A future of the bucket's buffer, averaged over ranks."""
        self.traffic.add_all_reduce(self.payload(bucket), dist.get_world_size())
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def held_back(self) -> dict[Tensor, Tensor] | None:
        """See :meth:`transformer_core.parallel.strategies.strategy.Strategy.held_back`."""
        return None

    def memory(self, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        """See :meth:`transformer_core.parallel.strategies.strategy.Strategy.memory`; the parameters
        have these ``names``."""
        return {}

    def remember(self, memory: Mapping[str, Tensor], names: Mapping[Tensor, str]) -> None:
        """Take up what :meth:`memory` gave."""

    def close(self) -> None:
        """End what the hook started."""
