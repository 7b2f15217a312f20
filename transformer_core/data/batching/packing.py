"""Which pairs share a row: packing without cross-contamination (arXiv 2107.02027).

Every pair stands in one row with both its sides, so a row has to hold the sources and the targets
of its pairs. The pairs of a micro-batch are dealt out over a number of rows in rounds, longest
first; in every round the fullest row gets the shortest pair, which balances the rows. Rounds are
taken together for all micro-batches of a window, so nothing loops over pairs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_core.data.arrays import group_maxima, group_sums


@dataclass(frozen=True)
class Packing:
    """Places of pairs that come group after group, each group in rows of its own."""

    row: NDArray[np.int64]
    """[pairs] row of each pair in its group."""
    source_column: NDArray[np.int64]
    """[pairs] where its source begins in the row."""
    target_column: NDArray[np.int64]
    """[pairs] where its target begins in the row."""
    rows: NDArray[np.int64]
    """[groups] rows of each group; 0 for a group without pairs."""
    source_width: NDArray[np.int64]
    """[groups] tokens of the fullest row, source side."""
    target_width: NDArray[np.int64]
    """[groups] tokens of the fullest row, target side."""


def pack(
    sources: NDArray[np.int64], targets: NDArray[np.int64], starts: NDArray[np.int64], tokens: int
) -> Packing:
    """Pack each group of pairs into rows of about ``tokens`` tokens on a side.

    Args:
        sources: [pairs] source tokens, ends included.
        targets: [pairs] target tokens, ends included.
        starts: [groups + 1] where each group begins and ends.
        tokens: length of a row that is aimed at; a longer sentence makes all rows of its group as
            long.
    """
    groups = len(starts) - 1
    longest = np.maximum(group_maxima(sources, starts), group_maxima(targets, starts))
    total = np.maximum(group_sums(sources, starts), group_sums(targets, starts))
    rows = -(-total // np.maximum(longest, tokens))
    first_row = np.cumsum(rows) - rows

    group = np.repeat(np.arange(groups), np.diff(starts))
    order = np.lexsort((-(sources + targets), group))
    turn, place = np.divmod(np.arange(len(order)) - starts[group], rows[group])
    row = np.empty_like(sources)
    filled = np.zeros((2, int(rows.sum())), np.int64)
    columns = np.empty((2, len(order)), np.int64)
    group_of_row = np.repeat(np.arange(groups), rows)
    by_turn = np.argsort(turn, kind="stable")
    for chosen in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]) if len(turn) else []:
        pairs = order[chosen]
        # The rows of the groups that still have pairs, the emptiest of each group first.
        active = np.zeros(groups, bool)
        active[group[chosen]] = True
        candidates = np.flatnonzero(active[group_of_row])
        fullness = filled.max(axis=0)[candidates]
        candidates = candidates[np.lexsort((fullness, group_of_row[candidates]))]
        first = np.cumsum(np.where(active, rows, 0)) - np.where(active, rows, 0)
        taken = candidates[first[group[chosen]] + place[chosen]]
        row[pairs] = taken - first_row[group[chosen]]
        columns[:, pairs] = filled[:, taken]
        filled[:, taken] += np.stack([sources[pairs], targets[pairs]])

    first_rows = np.concatenate([first_row, [int(rows.sum())]])
    source_width, target_width = (group_maxima(side, first_rows) for side in filled)
    return Packing(row, columns[0], columns[1], rows, source_width, target_width)
