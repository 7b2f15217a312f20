"""Batches for a training and for an evaluation: pairs as the rows of all micro-batches of a window, alone or
several packed in one, and the global batches that a rank is fed.

Packed rows have no cross-contamination (arXiv 2107.02027): every pair stands in one row with both
its sides, so a row has to hold the sources and the targets of its pairs. The pairs of a micro-batch
are dealt out over a number of rows in rounds, longest first; in every round the fullest row gets
the shortest pair, which balances the rows. Rounds are taken together for all micro-batches of a
window, so nothing loops over pairs.
"""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.config.data import AnyBatching
from transformer_core.data.batching.collate import Batch, collate, collate_texts
from transformer_core.data.batching.epoch_plan import cut_by_tokens, plan_epoch
from transformer_core.data.batching.window_rows import WindowRows
from transformer_core.data.sharding.shard_store import PairStore


@dataclass(frozen=True)
class GlobalBatch:
    """One optimizer step: this rank's micro-batches, and the counts over all ranks."""

    epoch: int  # pass over the corpus, from 0
    index: int  # number within the epoch, from 0
    micro_batches: list[Batch]  # the batches of this rank, in order
    pairs: int  # sentence pairs, or rows of texts, over all ranks
    tokens: int  # non-padding source and target tokens, ends included, over all ranks
    target_tokens: int  # non-padding target tokens, ends included, over all ranks
    padded_tokens: int  # source and target tokens with padding, over all ranks


CUDA_PREFETCH = 2  # batches prepared ahead of a training on a GPU

Batches = Generator[GlobalBatch, None, None]
T = TypeVar("T")


class Feed:
    """The global batches of a training, as one rank sees them.

    A global batch is divided into ``world_size * micro_batches`` parts; this rank gets the parts
    ``rank * micro_batches + m``, each padded to its own longest row. The counts over all ranks
    follow from the lengths, so that ranks need not talk. A thread prepares ``prefetch`` batches
    ahead; by default 2 on CUDA, and none on the CPU, where it would take time from the training.
    """

    def __init__(
        self,
        store: PairStore,
        batching: AnyBatching,
        seed: int,
        rank: int,
        world_size: int,
        micro_batches: int,
        device: torch.device,
        prefetch: int | None = None,
    ) -> None:
        self.store = store
        self._batching = batching
        self._seed = seed
        self._own = range(rank * micro_batches, (rank + 1) * micro_batches)
        self._parts = world_size * micro_batches
        self._device = device
        self._cuda = device.type == "cuda"
        self._prefetch = (CUDA_PREFETCH if self._cuda else 0) if prefetch is None else prefetch

    def batches(self, epoch: int = 0, batch: int = 0) -> Batches:
        """Endless global batches from this position on, one epoch after the other.

        They are those of a feed that was never interrupted; the position after the last batch of
        an epoch is the start of the next. Close the generator to end its thread.

        Raises ValueError if the epoch has fewer batches.
        """
        made = self._make(epoch, batch)
        if self._cuda:
            return self._received(self._ahead(self._sent(made)))
        return self._ahead(made)

    def _make(self, epoch: int, batch: int) -> Batches:
        while True:
            for window in plan_epoch(self.store, self._batching, self._seed, epoch, batch):
                rows = WindowRows(self.store, window, self._parts, self._batching.rows)
                for index in range(max(batch - window.first_batch, 0), len(window)):
                    yield GlobalBatch(
                        epoch=epoch,
                        index=window.first_batch + index,
                        micro_batches=[rows.batch(index, part) for part in self._own],
                        pairs=rows.pairs[index],
                        tokens=rows.tokens[index],
                        target_tokens=rows.target_tokens[index],
                        padded_tokens=rows.padded_tokens[index],
                    )
            epoch, batch = epoch + 1, 0

    def _sent(self, made: Batches) -> Generator[tuple[GlobalBatch, torch.cuda.Event], None, None]:
        """The batches on their way to the device, each with an event that ends its copies.

        Copies from page-locked memory, on a stream of their own, run beside the training.
        """
        stream = torch.cuda.Stream(self._device)
        with closing(made):
            for item in made:
                with torch.cuda.stream(stream):
                    there = [
                        m.pin().to(self._device, non_blocking=True) for m in item.micro_batches
                    ]
                yield replace(item, micro_batches=there), stream.record_event()

    def _received(
        self, sent: Generator[tuple[GlobalBatch, torch.cuda.Event], None, None]
    ) -> Batches:
        """Yields batches once the current stream may use them; the host does not wait."""
        with closing(sent):
            for item, arrived in sent:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(arrived)
                for micro in item.micro_batches:
                    micro.record_stream(stream)
                yield item

    def _ahead(self, made: Generator[T, None, None]) -> Generator[T, None, None]:
        """The same items, the next few of them made by a thread meanwhile."""
        if not self._prefetch:
            yield from made
            return
        with closing(made), ThreadPoolExecutor(1, "feed", self._on_device) as thread:
            waiting = deque(thread.submit(next, made) for _ in range(self._prefetch))
            try:
                while True:
                    item = waiting.popleft().result()
                    waiting.append(thread.submit(next, made))
                    yield item
            finally:
                for future in waiting:
                    future.cancel()

    def _on_device(self) -> None:
        # A new thread starts on device 0; pinning memory there would take a context on it.
        if self._cuda:
            torch.cuda.set_device(self._device)


def evaluation_batches(
    store: PairStore,
    max_pairs: int | None = None,
    *,
    pairs_per_batch: int | None = None,
    tokens_per_batch: int = 8_192,
) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """The first ``max_pairs`` pairs (None: all), each once, with their numbers in the store.

    Longest first, so that memory that does not suffice shows at once. A batch has
    ``pairs_per_batch`` pairs or, where that is None, ``tokens_per_batch`` tokens with padding.
    The last may be smaller.
    """
    count = len(store) if max_pairs is None else min(max_pairs, len(store))
    sources, targets = (
        side.lengths(np.array([[0, count]])) for side in (store.source, store.target)
    )
    order = np.lexsort((targets, sources))[::-1]
    if pairs_per_batch is None:
        starts = cut_by_tokens(sources[order], targets[order], tokens_per_batch, store.ends)
    else:
        starts = np.minimum(np.arange(0, count + pairs_per_batch, pairs_per_batch), count)
    for start, end in pairwise(starts):
        rows = order[start:end]
        yield rows, gathered(store, rows)


def gathered(store: PairStore, rows: NDArray[np.int64]) -> Batch:
    """The pairs, or rows of texts, ``rows`` of ``store`` as a batch."""
    in_rows = collate_texts if store.texts else collate
    return in_rows(store.source.gather(rows), store.target.gather(rows))
