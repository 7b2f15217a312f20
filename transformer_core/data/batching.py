"""Global batches of an epoch, planned from the lengths alone.

The plan depends on lengths, batching, seed and epoch, on nothing else: every variant and every
number of devices sees the same global batches in the same order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.data import AnyBatching, FixedSize
from transformer_core.data.arrays import ranges


@dataclass(frozen=True)
class EpochPlan:
    """One pass over the corpus: batch i is the pairs ``order[starts[i]:starts[i + 1]]``."""

    order: NDArray[np.int64]
    """[pairs] every pair once."""
    starts: NDArray[np.int64]
    """[batches + 1] where each batch begins and ends in ``order``."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, batch: int) -> NDArray[np.int64]:
        """The pairs of a global batch."""
        return self.order[self.starts[batch] : self.starts[batch + 1]]


def plan_epoch(
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    batching: AnyBatching,
    seed: int,
    epoch: int,
) -> EpochPlan:
    """The global batches of an epoch, in random order.

    Args:
        source_lengths: [pairs] source tokens, without begin and end.
        target_lengths: [pairs] target tokens, without begin and end.
        batching: TokenBudget bounds ``rows * (longest source + 1 + longest target + 1)`` of a
            batch (a pair that is longer than the budget is a batch by itself); FixedSize takes a
            number of pairs, and the last batch is smaller.
        seed: seed of the run.
        epoch: pass over the corpus, from 0.
    """
    # The raw stream of a bit generator is the same in every version of numpy; its distributions
    # are not.
    random = np.random.PCG64([seed, epoch])
    order = _permutation(random, len(source_lengths))
    if isinstance(batching, FixedSize):
        pairs = batching.scaled_pairs
        starts = np.arange(0, len(order) + pairs, pairs, dtype=np.int64)
        return EpochPlan(order, np.minimum(starts, len(order)))
    tokens = batching.scaled_tokens
    order = _by_length(source_lengths, target_lengths, order, tokens, random)
    starts = cut_by_tokens(source_lengths[order], target_lengths[order], tokens)
    shuffled = _permutation(random, len(starts) - 1)
    sizes = np.diff(starts)[shuffled]
    return EpochPlan(
        order[ranges(starts[shuffled], sizes)],
        np.concatenate([[0], np.cumsum(sizes)]),
    )


def part_rows(plan: EpochPlan, batch: int, part: int, parts: int) -> NDArray[np.int64]:
    """The pairs of one part (a micro-batch of a rank) of a global batch; perhaps none.

    Every ``parts``-th pair, so that all parts have about the same lengths.
    """
    return plan.rows(batch)[part::parts]


def cut_by_tokens(
    source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer], tokens: int
) -> NDArray[np.int64]:
    """[batches + 1] where to cut pairs, in the order given, into batches of a token budget.

    Each batch takes as many pairs as fit, and at least one.
    """
    sources = source_lengths.astype(np.int64) + 1
    targets = target_lengths.astype(np.int64) + 1
    starts, start = [0], 0
    while start < len(sources):
        # The first pair bounds the number of rows, so no more than these need a look.
        most = max(1, tokens // int(sources[start] + targets[start]))
        longest = np.maximum.accumulate(sources[start : start + most])
        longest += np.maximum.accumulate(targets[start : start + most])
        longest *= np.arange(1, len(longest) + 1)
        start += max(1, int(longest.searchsorted(tokens, side="right")))
        starts.append(start)
    return np.array(starts, np.int64)


def _by_length(
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    shuffled: NDArray[np.int64],
    tokens: int,
    random: np.random.PCG64,
) -> NDArray[np.int64]:
    """Pairs in an order in which neighbours have about the same source and target length.

    Bands of similar source length, sorted by target length up and down in turn. Pairs of equal
    length keep their shuffled order, and the limits of the bands move with the epoch.
    """
    pairs = len(shuffled)
    # 16 bits: numpy then sorts by radix, an order of magnitude faster.
    sources = np.minimum(source_lengths, 0xFFFF).astype(np.uint16)
    targets = np.minimum(target_lengths, 0xFFFF).astype(np.uint16)
    order = shuffled[np.argsort(sources[shuffled], kind="stable")]
    total = int(source_lengths.sum(dtype=np.int64) + target_lengths.sum(dtype=np.int64)) + 2 * pairs
    # As many bands as batches in a band, which balances the padding of source and target.
    bands = min(0xFFFF, max(1, round((total / tokens) ** 0.5)))
    shift = int(random.random_raw()) % max(pairs, 1)
    band = ((np.arange(pairs) * bands + shift) // max(pairs, 1)).astype(np.uint16)
    up_and_down = targets[order]
    np.subtract(0xFFFF, up_and_down, out=up_and_down, where=(band & 1).astype(bool))
    return order[np.lexsort((up_and_down, band))]


def _permutation(random: np.random.PCG64, count: int) -> NDArray[np.int64]:
    return np.argsort(random.random_raw(count), kind="stable")
