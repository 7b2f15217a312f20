"""The records of a side's first steps, from all its ranks."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transformer_core.tune.sketches import Sketch, distance, norm


@dataclass
class Record:
    """The recordings of a side's ranks."""

    ranks: list[dict[str, Sketch]] = field(default_factory=list)

    @classmethod
    def read(cls, files: list[Path]) -> "Record":
        """The record in ``files``, one for each rank."""
        found = cls()
        for file in files:
            with np.load(file, allow_pickle=False) as data:
                found.ranks.append({name: data[name] for name in data.files})
        return found

    def keys(self, kind: str) -> list[tuple[int, int, str]]:
        """(rank, step, tensor) of each entry of a kind: gradient, update, weight, buffer or orphan."""
        wanted = "weight" if kind == "update" else kind
        found = []
        for rank, each in enumerate(self.ranks):
            for key in each:
                step, what, name = _parts(key)
                if what == wanted and (
                    kind != "update" or f"{int(step) - 1} weight {name}" in each
                ):
                    found.append((rank, int(step), name))
        return found

    def get(self, kind: str, key: tuple[int, int, str]) -> Sketch | None:
        """The sketch of an entry; an update is the difference of two weights. None if it is missing."""
        rank, step, name = key
        each = self.ranks[rank] if rank < len(self.ranks) else {}
        if kind == "update":
            new, old = each.get(f"{step} weight {name}"), each.get(f"{step - 1} weight {name}")
            return None if new is None or old is None else new - old
        return each.get(f"{step} {kind} {name}")

    def equals(self, other: "Record") -> bool:
        """Whether everything is equal to the last bit."""
        if len(self.ranks) != len(other.ranks):
            return False
        return all(
            one.keys() == two.keys()
            and all(np.array_equal(one[k], two[k], equal_nan=True) for k in one)
            for one, two in zip(self.ranks, other.ranks, strict=True)
        )

    def together(self) -> "Record":
        """Ranks and micro-batches as one: losses are summed over micro-batches and averaged over ranks;
        tensors are those of rank 0, because all ranks have the same."""
        first = {name: value for name, value in self.ranks[0].items() if name != "inputs"}
        losses = np.nansum(self.losses(), axis=2).mean(axis=0)[:, None]
        return Record([first | {"losses": losses}])

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
    found = {}
    for key, value in mine.items():
        step, kind, name = _parts(key)
        known = kind in ("gradient", "weight")
        found[f"{step} {kind} {names[name]}" if known and name in names else key] = value
    return found


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
