"""Weights that may be sharded over ranks (DTensor), and the whole tensors they stand for."""

import torch
from torch import Tensor, nn

# torch.distributed.tensor is imported where a tensor is sharded: it takes 0.4 s, in every process.


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; one that has several names comes once."""
    unique: dict[int, tuple[str, Tensor]] = {}
    # Not named_parameters(): a state dict also takes sharded layers back to their sharded state.
    for name, tensor in model.state_dict(keep_vars=True).items():
        unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


def is_sharded(tensor: object) -> bool:
    """Whether ``tensor`` is one rank's view of a DTensor."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The tensor that a sharded one stands for; every rank must call this. Others as they are."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def piece(tensor: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor; the pieces of all ranks, in order, are the whole.

    Raises ValueError for a tensor that is divided in another way.
    """
    tensor = tensor.detach()
    if not is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(tensor, DTensor)
    if tensor.placements != (Shard(0),):
        raise ValueError(f"a tensor placed as {tensor.placements} is not in pieces of rows")
    return tensor.to_local()


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
