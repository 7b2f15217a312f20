"""What the clocks of ranks differ by, from the collectives that they ran together.

All ranks are inside a collective at once. Where the executions of two ranks do not overlap, their
clocks differ, and a collective ends on all ranks at nearly the same time.
"""

from dataclasses import dataclass

import numpy as np

from transformer_core.trace.events.rows import Rows
from transformer_core.trace.readers.columns import Integers


@dataclass(frozen=True)
class Offset:
    """Nanoseconds to add to the times of a rank."""

    rank: int
    nanoseconds: int
    matched: int
    """Executions that were compared."""


def clock_offsets(work: Rows) -> list[Offset]:
    """The offsets of all ranks from the clock of the first; 0 where they agree, or where there is
    nothing to compare."""
    ranks = np.unique(work["rank"]).tolist()
    first = _executions(work, ranks[0]) if ranks else {}
    found = []
    for rank in ranks:
        mine = _executions(work, rank)
        pairs = [
            (first[key], mine[key])
            for key in first.keys() & mine.keys()
            if len(first[key][0]) == len(mine[key][0])
        ]
        if rank == ranks[0] or not pairs:
            found.append(Offset(rank, 0, 0))
            continue
        begins, ends = (
            [np.concatenate([pair[side][edge] for pair in pairs]) for side in range(2)]
            for edge in range(2)
        )
        overlap = np.minimum(*ends) > np.maximum(*begins)
        apart = int(np.median(ends[0] - ends[1]))
        agree = 2 * int(overlap.sum()) >= len(overlap)
        found.append(Offset(rank, 0 if agree else apart, len(overlap)))
    return found


def _executions(work: Rows, rank: int) -> dict[tuple[str, str | None], tuple[Integers, Integers]]:
    """Begins and ends by collective and group, in order of time."""
    mine = work.where(work["rank"] == rank)
    found = {}
    for name, places in mine.groups("collective").items():
        groups = mine["group"][places]
        for group in {*groups.tolist()}:
            inside = places[[value == group for value in groups.tolist()]]
            inside = inside[np.argsort(mine["t0_ns"][inside], kind="stable")]
            found[name, group] = (mine["t0_ns"][inside], mine["t1_ns"][inside])
    return found
