"""An order of batches in which every few in a row have about the mean size of all.

Speed-ups depend on the batches: without padding, a step gains most where rows differ most in length.
A comparison times a few batches of thousands, so it takes them in this order: its ratio is then that
of a long training, and sessions with different batches agree.

Herding, after Chen, Welling and Smola, Super-Samples from Kernel Herding (2010): each batch is the
one that brings the mean so far closest to the mean of all.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from transformer_core.data.arrays import group_maxima
from transformer_core.data.batching.window_rows import WindowRows

CANDIDATES = 32
"""Batches among which to choose the next: the order stays random, and takes no time."""


def sizes(rows: WindowRows) -> NDArray[np.float64]:
    """[batches, 3] pairs, tokens and padded tokens of each global batch, the same however it is
    divided among ranks or packed into rows."""
    source, target = (
        group_maxima(side, rows.batch_starts) for side in (rows.sources, rows.targets)
    )
    padded = np.array(rows.pairs) * (source + target)
    return np.stack([rows.pairs, rows.tokens, padded], axis=1).astype(np.float64)


def representative_order(measures: NDArray[np.floating]) -> Iterator[int]:
    """Yields the number of each batch once, so that any few in a row have about the mean of all in
    each column of ``measures`` [batches, measures]."""
    spread = measures.std(axis=0)
    deviations = (measures - measures.mean(axis=0)) / np.where(spread > 0, spread, 1)
    total = np.zeros(measures.shape[1])
    waiting = list(range(min(CANDIDATES, len(measures))))
    for following in range(len(waiting), len(waiting) + len(measures)):
        distances = ((total + deviations[waiting]) ** 2).sum(axis=1)
        chosen = waiting.pop(int(distances.argmin()))
        total += deviations[chosen]
        if following < len(measures):
            waiting.append(following)
        yield chosen
