"""Messages between ranks: combining tensors, collectives centered on rank 0, and a count of the bytes
that every rank sends and receives."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from transformer_core.parallel.topology import Process

MIB = 2**20


def buckets(tensors: Iterable[Tensor], limit_bytes: float) -> list[list[Tensor]]:
    """Groups consecutive tensors of one dtype; a group ends once it reaches ``limit_bytes``, like the
    buckets of DistributedDataParallel."""
    groups: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not groups or size >= limit_bytes or groups[-1][0].dtype != tensor.dtype:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.nbytes
    return groups


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Copies the elements of ``tensors``, of one dtype, into one flat tensor."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Writes the elements of ``flat`` to ``tensors``: the inverse of :func:`flatten`."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def gradients(parameters: Iterable[torch.nn.Parameter]) -> list[Tensor]:
    """The gradients of all trained parameters; sets missing ones to zeros."""
    found = []
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
    return found


class Traffic:
    """Counts the messages of one process, by operation, since it started.

    Bytes follow from the scheme. A backend may use another route, such as a tree for a broadcast,
    which shifts bytes between ranks.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, operation: str, sent: int = 0, received: int = 0, calls: int = 1) -> None:
        """Counts ``calls`` of an operation, with their total bytes sent and received."""
        entry = self._counts[operation]
        for index, value in enumerate((calls, sent, received)):
            entry[index] += value

    def add_all_reduce(self, payload: int, world_size: int, calls: int = 1) -> None:
        """Counts all-reduces of ``payload`` bytes in total.

        The backend does not tell its algorithm, so we count the least that every rank must send and
        receive, 2 (p - 1) / p of the payload (Patarasuk and Yuan, 2009), as in a ring.
        """
        least = 2 * (world_size - 1) * payload // world_size
        self.add("all_reduce", least, least, calls)

    def of_all_ranks(
        self, gather: Callable[[Sequence[float]], list[list[float]]]
    ) -> dict[str, dict[str, Any]]:
        """Operations in alphabetical order: calls, and bytes sent and received by each rank.

        Every rank must call this, after counting the same operations.
        """
        names = sorted(self._counts)
        everyone = gather([value for name in names for value in self._counts[name]])
        result = {}
        for index, name in enumerate(names):
            calls, sent, received = zip(
                *(map(int, values[3 * index : 3 * index + 3]) for values in everyone), strict=True
            )
            result[name] = {
                "calls": max(calls),
                "sent_bytes": list(sent),
                "received_bytes": list(received),
            }
        return result


class Hub:
    """Broadcast, scatter, gather and reduce between rank 0 and all others.

    All shares have equal size, as NCCL requires. We send contents as bytes, since backends support
    different number formats.
    """

    def __init__(self, process: Process, timeout: timedelta) -> None:
        self.is_main = process.is_main
        self.world_size = process.world_size
        self.device = process.device
        self.traffic = Traffic()
        # Numbers for hosts travel between hosts: through the devices, both hosts would have to wait.
        on_gpus = dist.is_initialized() and dist.get_backend() == "nccl"
        self.hosts = dist.new_group(backend="gloo", timeout=timeout) if on_gpus else None

    def broadcast(self, name: str, values: Tensor) -> None:
        """Overwrites the contiguous ``values`` with those of rank 0."""
        dist.broadcast(_bytes(values), src=0)
        self._count(f"broadcast of {name}", values.nbytes, from_main=True)

    def broadcast_counts(self, numbers: Sequence[int]) -> list[int]:
        """Returns the integers of rank 0; the other ranks pass as many arbitrary ones."""
        device = torch.device("cpu") if self.hosts is not None else self.device
        message = torch.tensor(numbers, dtype=torch.int64, device=device)
        dist.broadcast(_bytes(message), src=0, group=self.hosts)
        self._count("broadcast of counts", message.nbytes, from_main=True)
        return list(numbers) if self.is_main else message.tolist()

    def scatter(
        self, name: str, whole: Tensor | None, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """This rank's share, of the given shape [n, ...], of rank 0's tensor ``whole`` [p n, ...]."""
        own = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        parts = None
        if self.is_main:
            assert whole is not None
            parts = [_bytes(part) for part in whole.contiguous().chunk(self.world_size)]
        dist.scatter(_bytes(own), parts, src=0)
        self._count(f"scatter of {name}", own.nbytes, from_main=True)
        return own

    def gather(self, name: str, own: Tensor) -> Tensor | None:
        """The shares [n, ...] of all ranks as one tensor [p n, ...] on rank 0, None elsewhere."""
        whole = parts = None
        if self.is_main:
            whole = own.new_empty((self.world_size * own.size(0), *own.shape[1:]))
            parts = [_bytes(part) for part in whole.chunk(self.world_size)]
        dist.gather(_bytes(own.contiguous()), parts, dst=0)
        self._count(f"gather of {name}", own.nbytes, from_main=False)
        return whole

    def reduce(self, name: str, values: Tensor) -> None:
        """Sums ``values`` over ranks, in place on rank 0; on other ranks they become undefined."""
        dist.reduce(values, dst=0)
        self._count(f"reduce of {name}", values.nbytes, from_main=False)

    def _count(self, operation: str, share: int, from_main: bool) -> None:
        payload = share * (self.world_size - 1) if self.is_main else share
        side = "sent" if self.is_main == from_main else "received"
        self.traffic.add(operation, **{side: payload})


def gather_with_gradient(own: Tensor, name: str, hub: Hub) -> Tensor:
    """The shares [n, ...] of all ranks as one tensor [p n, ...] on rank 0; on others a scalar 0.

    Every rank must run backward from its result, because rank 0 then scatters the gradient.
    """
    return _Gather.apply(own, name, hub)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, name: str, hub: Hub) -> Tensor:
        ctx.name, ctx.hub, ctx.shape, ctx.dtype = name, hub, own.shape, own.dtype
        whole = hub.gather(name, own)
        return own.new_zeros((), dtype=torch.float32) if whole is None else whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        name = f"gradients of {ctx.name}"
        return ctx.hub.scatter(name, grad, ctx.shape, ctx.dtype), None, None


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, as bytes."""
    # as_strided, because the stride of a single element may be 0, as in an expanded gradient.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
