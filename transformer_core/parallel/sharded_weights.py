"""Weights that may be sharded over ranks (DTensor), and the whole tensors they stand for."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# torch.distributed.tensor is imported where a tensor is sharded: it takes 0.4 s, in every process.


TOGETHER = 2**24  # elements of small tensors that are gathered in one message, about: 64 MB


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; one that has several names comes once."""
    unique: dict[int, tuple[str, Tensor]] = {}
    # Not named_parameters(): a state dict also takes sharded layers back to their sharded state.
    for name, tensor in model.state_dict(keep_vars=True).items():
        unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


def is_sharded(tensor: object) -> bool:
    return hasattr(tensor, "full_tensor")


def mesh_of(tensor: object) -> Any:
    """The ranks over which a tensor is sharded; null for a whole one."""
    return getattr(tensor, "device_mesh", None)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """The tensor that a sharded one stands for; every rank must call this. Others as they are."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """:func:`whole` of each; small ones that are sharded share messages, which costs much less than
    one for each. Every rank must take all."""
    bundle: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        small = tensor.dtype == torch.float32 and tensor.numel() <= TOGETHER
        if not small or not _is_in_rows(tensor):
            yield name, whole(tensor)
            continue
        bundle[name] = tensor.detach()
        if sum(each.numel() for each in bundle.values()) > TOGETHER:
            yield from _gathered(bundle)
            bundle = {}
    yield from _gathered(bundle)


def _is_in_rows(tensor: Tensor) -> bool:
    """Whether ranks have rows of a tensor in order, along one dimension of the mesh."""
    if not is_sharded(tensor):
        return False
    from torch.distributed.tensor import Shard

    return tensor.placements == (Shard(0),)  # type: ignore[attr-defined]


def _gathered(bundle: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors in rows, of one mesh, as whole ones: each rank's pieces in one message."""
    if not bundle:
        return
    mesh = next(iter(bundle.values())).device_mesh
    ranks, pieces = mesh.size(), []
    for tensor in bundle.values():
        local, rows = tensor.to_local(), -(-tensor.size(0) // ranks)
        # The last ranks may have fewer rows, or none.
        padding = local.new_zeros((rows - local.size(0), *local.shape[1:]))
        pieces.append(torch.cat([local, padding]).flatten())
    mine = torch.cat(pieces)
    everyone = mine.new_empty(ranks * mine.numel())
    dist.all_gather_into_tensor(everyone, mine, group=mesh.get_group())
    parts = everyone.view(ranks, -1).split([piece.numel() for piece in pieces], dim=1)
    for (name, tensor), part in zip(bundle.items(), parts, strict=True):
        rows = part.reshape(-1, *tensor.shape[1:])
        yield name, rows[: tensor.size(0)]


def piece(tensor: Tensor, main: bool) -> Tensor | None:
    """This rank's rows of a sharded tensor; the pieces of all ranks, in order, are the whole. The
    ``main`` rank has tensors that are not divided so, for which every rank must call this."""
    if _is_in_rows(tensor) and mesh_of(tensor).size() == dist.get_world_size():
        return local(tensor.detach())
    gathered = whole(tensor)
    return gathered if main else None


def divided_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A whole ``tensor``, the same on every rank, on the device and in the shards of ``pattern``.

    Ranks do not talk: each keeps its own piece.
    """
    tensor = tensor.to(pattern.device)
    if not is_sharded(pattern):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(pattern, DTensor)
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None)


def whole_weights(model: nn.Module, keep: bool) -> dict[str, Tensor]:
    """:func:`named_tensors` as whole tensors on the CPU.

    Every rank must call this, one tensor at a time is gathered, and those that do not ``keep``
    them get an empty dict.
    """
    weights = {}
    for name, tensor in named_tensors(model).items():
        gathered = whole(tensor)
        if keep:
            weights[name] = gathered.to("cpu", memory_format=torch.contiguous_format)
    return weights
