"""Many tensors as few contiguous ones: a message has a cost of its own."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

MIB = 2**20


def buckets(tensors: Iterable[Tensor], limit_bytes: float) -> list[list[Tensor]]:
    """Consecutive tensors of one dtype in groups; a group ends once it has ``limit_bytes``.

    This is how DistributedDataParallel fills its buckets.
    """
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
    """The elements of ``tensors``, of one dtype, one after the other, in new memory."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Overwrite ``tensors`` with the elements that :func:`flatten` would take from them."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def gradients(parameters: Iterable[torch.nn.Parameter]) -> list[Tensor]:
    """The gradients of all parameters that are trained; zeros, also in place, where none is."""
    found = []
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
    return found
