"""Assigns the pairs of a window to the rows of its micro-batches, one pair to a row or several packed
in one; shapes and token counts follow. Imports torch only to build a batch.

Packed rows have no cross-contamination (arXiv 2107.02027), and a row holds both sides of each of its
pairs. We deal the pairs of a micro-batch out over its rows in rounds, longest first; in every round
the fullest row gets the shortest pair, which balances the rows. One round serves all micro-batches
of a window, so nothing loops over pairs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schemas.config.data import AnyRows, PackedRows
from transformer_core.data.arrays import Integers, Ragged, group_maxima, group_sums
from transformer_core.data.batching.epoch_plan import Window, divide
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.special_tokens import EOS, SPECIAL_NAMES

if TYPE_CHECKING:
    from transformer_core.data.batching.collate import Batch


@dataclass(frozen=True)
class Packing:
    """The places of pairs, ordered by group; each group has separate rows."""

    row: Integers  # [pairs] row of each pair in its group
    source_column: Integers  # [pairs] column of the row in which its source begins
    target_column: Integers  # [pairs] column of the row in which its target begins
    rows: Integers  # [groups] number of rows of each group; 0 for an empty group
    source_width: Integers  # [groups] tokens of the fullest row, source side
    target_width: Integers  # [groups] tokens of the fullest row, target side


def pack(sources: Integers, targets: Integers, starts: Integers, tokens: int) -> Packing:
    """Packs each group of pairs into rows of about ``tokens`` tokens on a side; a longer sentence
    lengthens all rows of its group.

    ``sources`` and ``targets`` [pairs] are the token counts of each pair, ends included; ``starts``
    [groups + 1] are the limits of the groups.
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
        # The rows of groups that still have pairs, the emptiest of each group first.
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


class WindowRows:
    """The micro-batches of a window, built on demand.

    We compute the places of all pairs and all counts at once, and copy all pairs of the window,
    since nearly every page of the memory map holds pairs of nearly every part. A global batch has
    ``parts`` micro-batches over all ranks.
    """

    def __init__(self, store: PairStore, window: Window, parts: int, rows: AnyRows) -> None:
        order, self._starts = divide(window, parts)
        self._parts = parts
        self._source = store.source.read(window.spans).take(order)
        self._target = store.target.read(window.spans).take(order)
        self._texts = store.texts
        sources, targets = (
            side.lengths.astype(np.int64) + store.ends for side in (self._source, self._target)
        )
        self._packing: Packing | None = None
        if isinstance(rows, PackedRows):
            _check_ids(self._source, "source")
            _check_ids(self._target, "target")
            self._packing = pack(sources, targets, self._starts, rows.tokens)
            shapes = [self._packing.rows, self._packing.source_width, self._packing.target_width]
        else:
            longest = [group_maxima(side, self._starts) for side in (sources, targets)]
            shapes = [np.diff(self._starts), *longest]
        multiples = (rows.row_multiple, rows.width_multiple, rows.width_multiple)
        shapes = [-(-size // by) * by for size, by in zip(shapes, multiples, strict=True)]
        # An empty part has rows of one token on each side; texts have no source side.
        self.shapes = np.maximum(
            np.stack(shapes, axis=1), [rows.row_multiple, 0 if store.texts else 1, 1]
        )
        """[batches * parts, 3] rows, source width and target width of every part."""
        sizes = self.shapes[:, 0] * (self.shapes[:, 1] + self.shapes[:, 2])

        self.sources, self.targets = sources, targets
        """[pairs] token counts of each side, ends included, of the pairs part after part."""
        self.batch_starts = self._starts[::parts]
        """[batches + 1] limits of the global batches among the pairs."""
        self.pairs: list[int] = np.diff(window.starts).tolist()
        """Sentence pairs of each global batch."""
        self.tokens = self._sums(sources + targets)
        """Source and target tokens of each global batch, ends included."""
        self.target_tokens = self._sums(targets)
        """Target tokens of each global batch, ends included."""
        self.padded_tokens: list[int] = sizes.reshape(-1, parts).sum(axis=1).tolist()
        """Source and target tokens of each global batch with the padding of all its parts."""

    def batch(self, index: int, part: int) -> "Batch":
        """One part of a global batch of the window."""
        # Imported late, because counting tokens does not need torch.
        from transformer_core.data.batching.collate import collate, collate_packed, collate_texts

        group = index * self._parts + part
        pairs = slice(self._starts[group], self._starts[group + 1])
        source, target = self._source.take(pairs), self._target.take(pairs)
        packing = self._packing
        if packing is None:
            in_rows = collate_texts if self._texts else collate
            return in_rows(source, target).widened(*self.shapes[group].tolist())
        columns = packing.source_column[pairs], packing.target_column[pairs]
        shape = int(packing.rows[group]), *self.shapes[group, 1:].tolist()
        packed = collate_packed(source, target, packing.row[pairs], columns, shape)
        return packed.widened(*self.shapes[group].tolist())

    def _sums(self, values: Integers) -> list[int]:
        return group_sums(values, self.batch_starts).tolist()


def _check_ids(side: Ragged, name: str) -> None:
    """Raises ValueError if a sentence contains a token that separates the sentences of a row."""
    ids = side.values[: int(side.lengths.sum())]
    if len(ids) and ids.min() <= EOS:
        raise ValueError(
            f"a {name} sentence contains the special token {SPECIAL_NAMES[int(ids.min())]}, which "
            "separates the sentences of a packed row; remedy: set batching.rows: {kind: padded}, "
            "or use a tokenizer that does not find special tokens in text"
        )
