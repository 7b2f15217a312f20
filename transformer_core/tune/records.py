"""Records of the first steps of a side: short linear summaries of tensors that preserve distances.

A tensor of n numbers is folded into ``BUCKETS`` sums with random signs (a count sketch:
Charikar, Chen and Farach-Colton, Finding frequent items in data streams, 2002). The map is linear
and keeps 2-norms up to a relative error of about sqrt(2 / BUCKETS). So two processes need only keep
sketches to compare gradients, and the difference of two weights' sketches is that of their update.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
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
Key = tuple[int, int, str]  # rank, step and tensor of an entry

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
    their_signs = signs(flat.device)
    chunk = _PERIOD * 64
    for start in range(0, count, chunk):
        part = flat[start : start + chunk].double()
        part = part * their_signs[: part.numel()]
        full = part.numel() // BUCKETS * BUCKETS
        total += part[:full].view(-1, BUCKETS).sum(0)
        rest = part[full:]
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
    """Numbers that are equal if two batches are: for each tensor or array of numbers in ``value`` its
    size, its sum and a sum weighted by position. For a sparse tensor, those of its indices and its
    values."""
    found: list[float] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, np.ndarray) and item.dtype.kind in "biuf":
            item = torch.from_numpy(item.astype(np.float64))
        if isinstance(item, Tensor) and item.is_nested:
            waiting += item.detach().unbind()
        elif isinstance(item, Tensor) and item.layout != torch.strided:
            sparse = item.detach().to_sparse().coalesce()
            waiting += [sparse.indices(), sparse.values()]
        elif isinstance(item, Tensor):
            # Tables are padded with NaN. An infinite sum would hide all other numbers.
            flat = item.detach().reshape(-1).double().nan_to_num(1.5, 2.5, 3.5)
            place = torch.arange(flat.numel(), device=flat.device, dtype=torch.float64)
            weighed = (flat * ((place * 0.6180339887498949) % 1 + 0.5)).sum()
            found += [float(flat.numel()), float(flat.sum()), float(weighed)]
        elif isinstance(item, tuple | list):  # whose field may have the name items
            waiting += list(item)
        elif callable(getattr(item, "items", None)) and not isinstance(item, type):
            waiting += [each for _, each in sorted(item.items(), key=lambda pair: str(pair[0]))]
    return found


@cache
def signs(device: torch.device) -> Tensor:
    """The signs of sketches: 33.5 MB of the device, to be freed before the script's memory is measured."""
    drawn = np.random.default_rng(0).integers(0, 2, _PERIOD) * 2.0 - 1.0
    return torch.from_numpy(np.tile(drawn, 64)).to(device)


@dataclass
class Record:
    """The recordings of a side's ranks."""

    ranks: list[dict[str, Sketch]]

    @classmethod
    def read(cls, files: list[Path]) -> "Record":
        """The record in ``files``, one for each rank."""
        ranks = []
        for file in files:
            with np.load(file, allow_pickle=False) as data:
                ranks.append(dict(data))
        return cls(ranks)

    def of(self, kind: str) -> dict[Key, Sketch]:
        """The entries of a kind: gradient, update, weight, buffer or orphan. An update is the difference
        of two weights."""
        found = {}
        for rank, each in enumerate(self.ranks):
            for key, value in each.items():
                step, what, name = _parts(key)
                if what == "weight" and kind == "update":
                    before = each.get(f"{int(step) - 1} weight {name}")
                    if before is not None:
                        found[rank, int(step), name] = value - before
                elif what == kind:
                    found[rank, int(step), name] = value
        return found

    def infinite(self) -> set[tuple[int, str]]:
        """Rank and key of every gradient and buffer that is not finite: clipping by an infinite norm gives NaN,
        and a mask may be a buffer."""
        return {
            (rank, key)
            for rank, each in enumerate(self.ranks)
            for key, value in each.items()
            if _parts(key)[1] in ("gradient", "buffer") and not np.isfinite(value).all()
        }

    def without(self, entries: set[tuple[int, str]]) -> "Record":
        """The record without these entries."""
        ranks = [
            {key: value for key, value in each.items() if (rank, key) not in entries}
            for rank, each in enumerate(self.ranks)
        ]
        return Record(ranks)

    def equals(self, other: "Record") -> bool:
        if len(self.ranks) != len(other.ranks):
            return False
        return all(
            one.keys() == two.keys()
            and all(np.array_equal(one[k], two[k], equal_nan=True) for k in one)
            for one, two in zip(self.ranks, other.ranks, strict=True)
        )

    def together(self, ranks: int) -> "Record":
        """Ranks and micro-batches as one: losses are summed over micro-batches and averaged over ranks;
        tensors are those of the first ``ranks``."""
        losses = np.nansum(self.losses(), axis=2).mean(axis=0)[:, None]
        first = self.without({(rank, "inputs") for rank in range(ranks)}).ranks[:ranks]
        return Record([each | {"losses": losses} for each in first])

    def named_as(self, other: "Record") -> "Record":
        """This record with the tensor names of ``other``, for instance if the script trains a copy of
        the model. Unchanged unless the tensors match in number, order and, up to rounding, first
        weights."""
        return Record([_renamed(mine, other.ranks[0]) for mine in self.ranks])

    def losses(self) -> Sketch:
        """Losses [ranks, steps, backward passes]; NaN where a step had fewer passes."""
        tables = [each["losses"] for each in self.ranks]
        wide = max(table.shape[1] for table in tables)
        steps = min(table.shape[0] for table in tables)
        padded = [
            np.pad(t[:steps], ((0, 0), (0, wide - t.shape[1])), constant_values=np.nan)
            for t in tables
        ]
        return np.stack(padded)


def _renamed(mine: dict[str, Sketch], theirs: dict[str, Sketch]) -> dict[str, Sketch]:
    first, its = _first_weights(mine), _first_weights(theirs)
    names = dict(zip(first, its, strict=False))
    if len(first) != len(its) or any(
        not distance(first[a], its[b]) <= 0.01 * norm(its[b]) for a, b in names.items()
    ):
        return mine
    heads = sorted({_heads(a, b) for a, b in names.items()}, reverse=True)
    found = {}
    for key, value in mine.items():
        step, kind, name = _parts(key)
        others = [names[name]] if name in names else []
        if kind in ("buffer", "orphan"):  # They begin as their modules' parameters do.
            moved = (its + name.removeprefix(own) for own, its in heads if name.startswith(own))
            others = [each for each in moved if f"{step} {kind} {each}" in theirs]
        found[f"{step} {kind} {others[0]}" if others else key] = value
    return found


def _heads(one: str, other: str) -> tuple[str, str]:
    """The beginnings of two names, without their common end."""
    while one and one[-1:] == other[-1:]:
        one, other = one[:-1], other[:-1]
    return one, other


def _first_weights(rank: dict[str, Sketch]) -> dict[str, Sketch]:
    found: dict[str, Sketch] = {}
    for key, value in rank.items():
        _, kind, name = _parts(key)
        if kind == "weight":
            found.setdefault(name, value)
    return found


def _parts(key: str) -> list[str]:
    """Step, kind and name in the key of an entry; empty kind and name for tables such as losses."""
    return [*key.split(" ", 2), "", ""][:3]
