"""Short linear summaries of tensors that preserve distances.

A tensor of n numbers is folded into ``BUCKETS`` sums with random signs (a count sketch:
Charikar, Chen and Farach-Colton, Finding frequent items in data streams, 2002). The map is linear
and keeps 2-norms up to a relative error of about sqrt(2 / BUCKETS). So two processes need only keep
sketches to compare gradients, and the difference of two weights' sketches is that of their update.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKETS = 1009
"""Numbers kept of a tensor. The standard error of a distance is 4.5 %."""
WHOLE, WHOLE_VECTOR = 1024, 1 << 16
"""Matrices and vectors with at most this many numbers are kept whole."""

Sketch = NDArray[np.float64]

_SIGNS: dict[torch.device, Tensor] = {}
_PERIOD = 65_521
"""Signs repeat with a prime period, so no pattern of rows or columns coincides with them."""


@torch.no_grad()
def sketch(tensor: Any, whole: bool = False) -> Sketch:
    """The sketch of ``tensor``, float64 [BUCKETS]; a small tensor is kept whole, float64 [n].

    Of a sharded tensor only this rank's shard is used, unless ``whole`` gathers all of it, which all
    ranks must do together.
    """
    local = tensor
    if hasattr(tensor, "to_local"):
        local = tensor.full_tensor() if whole else tensor.to_local()
    flat = (local.to_dense() if local.is_sparse else local).detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    count = flat.numel()
    if count <= (WHOLE_VECTOR if local.dim() < 2 else WHOLE):
        return flat.double().cpu().numpy().copy()  # A tensor of 64 bits would share its memory.
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    signs = _signs(flat.device)
    chunk = _PERIOD * 64
    for start in range(0, count, chunk):
        part = flat[start : start + chunk].double()
        part = part * signs[: part.numel()]
        whole = part.numel() // BUCKETS * BUCKETS
        total += part[:whole].view(-1, BUCKETS).sum(0)
        rest = part[whole:]
        total[: rest.numel()] += rest
    return total.cpu().numpy()


def distance(one: Sketch, other: Sketch) -> float:
    """2-norm of the difference of two tensors; infinite if their sizes differ or a number is not
    finite."""
    if one.shape != other.shape:
        return float("inf")
    found = float(np.linalg.norm(one - other))
    return found if np.isfinite(found) else float("inf")


def norm(one: Sketch) -> float:
    """2-norm of a tensor."""
    return float(np.linalg.norm(one))


@torch.no_grad()
def fingerprint(value: Any) -> list[float]:
    """Numbers that are equal if two batches are: for each tensor in ``value`` its size, its sum and a
    sum weighted by position. For a sparse tensor, those of its indices and its values."""
    found: list[float] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor) and item.layout != torch.strided:
            sparse = item.detach().to_sparse().coalesce()
            waiting += [sparse.indices(), sparse.values()]
        elif isinstance(item, Tensor):
            flat = item.detach().reshape(-1).double()
            place = torch.arange(flat.numel(), device=flat.device, dtype=torch.float64)
            weighed = (flat * ((place * 0.6180339887498949) % 1 + 0.5)).sum()
            found += [float(flat.numel()), float(flat.sum()), float(weighed)]
        elif isinstance(item, dict) or hasattr(item, "items"):
            waiting += [each for _, each in sorted(item.items(), key=lambda pair: str(pair[0]))]
        elif isinstance(item, tuple | list):
            waiting += list(item)
    return found


def _signs(device: torch.device) -> Tensor:
    if device not in _SIGNS:
        drawn = np.random.default_rng(0).integers(0, 2, _PERIOD) * 2.0 - 1.0
        _SIGNS[device] = torch.from_numpy(np.tile(drawn, 64)).to(device)
    return _SIGNS[device]
