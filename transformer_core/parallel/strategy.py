"""Parallel strategies: their interface to the training loop, and those on process groups."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from schemas.config.parallel import Machine
from schemas.results import LinkUse, RankPlace, Topology
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.parallel import lost_ranks
from transformer_core.parallel.messages import MIB, buckets, flatten
from transformer_core.parallel.topology import Process, link_in_use


def gather_texts(text: str, device: torch.device) -> list[str]:
    """Gathers the ``text`` of each rank, in order: a collective of the default group, whose tensors
    lie on ``device``. torch's gather of objects would unpickle data from others."""
    if dist.get_backend() == "fake":
        # Memory predictions use one process for all ranks.
        return [text] * dist.get_world_size()
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    sizes = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    sizes[dist.get_rank()] = len(own)
    dist.all_reduce(sizes)
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    padded[: len(own)] = own
    everyone = [torch.empty_like(padded) for _ in range(len(sizes))]
    dist.all_gather(everyone, padded)
    found = zip(everyone, sizes.tolist(), strict=True)
    return [bytes(data[:size].tolist()).decode() for data, size in found]


class Strategy:
    """One process on one device; other strategies override what they do differently.

    The loop calls :meth:`wrap` once, :meth:`sync_context` around forward and backward of every
    micro-batch, :meth:`reduce_gradients` before the optimizer's step, and :meth:`update` for it.
    The optimizer then finds the gradient of the *sum* of all ranks' losses.
    """

    backend: str | None = None
    link: LinkUse | None = None
    averages = False  # whether it averages gradients over ranks
    apart = False  # whether ranks hold different weights between steps
    replica: nn.Module | None = None
    """A module with the parameters that every rank holds whole, and that are equal after each step."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.device = process.device
        self.places = [process.place]

    @property
    def devices(self) -> list[torch.device]:
        """The devices that this process drives, its own first."""
        return [self.device]

    @property
    def share(self) -> tuple[int, int]:
        """The number of this process's share of every global batch, and the number of shares."""
        return self.process.rank, self.process.world_size

    @property
    def validation_share(self) -> tuple[int, int]:
        """The same for the batches of a validation."""
        return self.share

    def batches(self, feed: Feed, epoch: int, batch: int) -> Generator[GlobalBatch, None, None]:
        """Yields the global batches of ``feed`` from this position on, as this process sees them."""
        return feed.batches(epoch, batch)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module that the loop calls in place of ``module``, an objective."""
        return module

    @property
    def loss_scale(self) -> float:
        """Factor of the loss that undoes averaging over ranks, since the loop needs the gradient of
        the sum."""
        return float(self.process.world_size) if self.averages else 1.0

    def sync_context(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Context of a micro-batch's forward and backward; ``last`` if it ends an optimizer step."""
        return contextlib.nullcontext()

    def reduce_gradients(self) -> None:
        """Called after the last backward pass and before the optimizer's step."""

    def update(self, step: Callable[[], Tensor]) -> Tensor:
        """Updates the weights by ``step``, and returns its result, the norm of the gradient."""
        return step()

    def weights_exchanged(self) -> None:
        """Called on every rank after the optimizer has exchanged the weights for their averages, or
        back."""

    def replica_difference(self) -> float | None:
        """Largest absolute difference between a parameter on any rank and on rank 0.

        Every rank must call this. None if there is only one copy of the parameters.
        """
        return None

    def held_back(self) -> dict[Tensor, Tensor] | None:
        """Errors of lossy messages by parameter, averaged over ranks, which later steps will add to
        the gradients. Every rank must call this. None if messages lose nothing."""
        return None

    def memory(self) -> dict[str, Tensor]:
        """The tensors that messages of this rank keep from step to step, by name. A checkpoint saves
        them, so that a resumed run continues as if it had never stopped."""
        return {}

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Restores the state that :meth:`memory` returned on this rank."""

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum of a small tensor over all ranks, on every rank."""
        return values

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """``values`` of every rank in order; all must have equal length."""
        return [list(values)]

    def synchronise(self) -> None:
        """Waits until all devices of all ranks have finished; we measure time between such points."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def progress(self) -> None:
        """Counts progress of this rank; the rank with the lowest count is holding up the others."""

    def rest(self) -> None:
        """Called before this rank stays away for longer than a peer may be silent: it waits for its turn,
        compiles, or computes on the host. The next progress ends that."""

    def topology(self) -> Topology:
        return self.process.describe(self.backend, self.places, self.link)

    def communication(self) -> dict[str, Any] | None:
        """Facts about the traffic, for the report; None if there is none. Every rank must call this."""
        return None

    def close(self) -> None:
        """Leaves the process group."""


class ProcessGroupStrategy(Strategy):
    """One process per device, joined by NCCL on CUDA and by gloo on CPU."""

    def __init__(self, process: Process, machine: Machine) -> None:
        super().__init__(process)
        self.backend = "nccl" if process.device.type == "cuda" else "gloo"
        self.link = link_in_use(machine)
        margin = lost_ranks.MARGIN if self.backend == "nccl" else 0.0
        self.timeout = timedelta(seconds=machine.timeout + margin)
        """How long a message may take: torch gives every new group a default of its own."""
        if not dist.is_initialized():
            self._join()
        everyone = gather_texts(process.place.model_dump_json(), process.device)
        self.places = [RankPlace.model_validate_json(text) for text in everyone]
        # On a timeout gloo raises an exception, but NCCL ends the process without one, so we call
        # the roll before that.
        deadline = machine.timeout if self.backend == "nccl" else None
        self.roll_call = lost_ranks.begin(process.rank, self.places, deadline)

    def _join(self) -> None:
        process = self.process
        dist.init_process_group(
            self.backend,
            rank=process.rank,
            world_size=process.world_size,
            timeout=self.timeout,
            device_id=process.device if process.device.type == "cuda" else None,
        )

    def allow_time(self, group: dist.ProcessGroup) -> None:
        """Gives a group that torch has made this run's timeout in place of torch's own."""
        if dist.get_backend(group) == self.backend:  # a fake one sends nothing
            # torch has no public way to set it for the groups of a mesh.
            dist.distributed_c10d._set_pg_timeout(self.timeout, group)

    def batches(self, feed: Feed, epoch: int, batch: int) -> Generator[GlobalBatch, None, None]:
        for item in super().batches(feed, epoch, batch):
            self.progress()
            yield item

    def progress(self) -> None:
        if self.roll_call is not None:
            self.roll_call.progress()

    def rest(self) -> None:
        if self.roll_call is not None:
            self.roll_call.rest()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context of code that may have to wait for other ranks."""
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
            # NaN differs from everything, so we turn it into infinity, which wins the maximum.
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
