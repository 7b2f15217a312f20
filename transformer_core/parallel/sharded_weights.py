"""Weights that may be sharded over ranks (DTensor), and how to gather and divide them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# We import torch.distributed.tensor only for sharded tensors: it takes 0.4 s in every process.

TOGETHER = 2**24  # approximate number of elements of small tensors in one message: 64 MB


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; each appears once, under its first name."""
    unique: dict[int, tuple[str, Tensor]] = {}
    # Unlike named_parameters(), state_dict() also returns gathered layers to their sharded state.
    for name, tensor in model.state_dict(keep_vars=True).items():
        unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


def is_sharded(tensor: object) -> bool:
    return hasattr(tensor, "full_tensor")


def mesh_of(tensor: object) -> Any:
    """The mesh of ranks over which a tensor is sharded; None for a whole tensor."""
    return getattr(tensor, "device_mesh", None)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """Gathers a sharded tensor; every rank must call this. Returns other tensors unchanged."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields :func:`whole` of each. Small sharded tensors share messages, which is much cheaper than
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
    """Whether ranks hold consecutive rows of a tensor, along one dimension of the mesh."""
    if not is_sharded(tensor):
        return False
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    first, *others = tensor.placements  # type: ignore[attr-defined]
    # To older versions of torch, one with strides equals one without.
    return not others and first == Shard(0) and not isinstance(first, _StridedShard)


def _gathered(bundle: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Gathers tensors in rows, of one mesh, with one message for each rank's pieces."""
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
    dist.all_gather([*everyone.view(ranks, -1)], mine, group=mesh.get_group())
    parts = everyone.view(ranks, -1).split([piece.numel() for piece in pieces], dim=1)
    for (name, tensor), part in zip(bundle.items(), parts, strict=True):
        rows = part.reshape(-1, *tensor.shape[1:])
        yield name, rows[: tensor.size(0)]


def piece(tensor: Tensor, main: bool) -> Tensor | None:
    """This rank's rows of a tensor sharded in rows; the pieces of all ranks in order form the whole.
    Of any other tensor, the ``main`` rank gets the whole and others None; every rank must call
    this."""
    if _is_in_rows(tensor) and mesh_of(tensor).size() == dist.get_world_size():
        return local(tensor.detach())
    gathered = whole(tensor)
    return gathered if main else None


def divided_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Moves a whole ``tensor``, equal on all ranks, to the device and the shards of ``pattern``.

    Ranks do not communicate: each keeps its own piece.
    """
    tensor = tensor.to(pattern.device)
    if not is_sharded(pattern):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(pattern, DTensor)
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None)


def whole_weights(model: nn.Module, keep: bool) -> dict[str, Tensor]:
    """:func:`named_tensors` as whole tensors on the CPU. Every rank must call this; those that do not
    ``keep`` them get an empty dict."""
    tensors = whole_tensors(named_tensors(model))
    return {name: tensor.cpu().contiguous() for name, tensor in tensors if keep}
