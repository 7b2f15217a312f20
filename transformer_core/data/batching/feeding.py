"""Feeds the global batches of a training to a rank, and the batches of an evaluation."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np
import torch

from schemas.config.data import AnyBatching, FixedSize
from transformer_core.data.arrays import Integers
from transformer_core.data.batching.collate import Batch, collate, collate_texts
from transformer_core.data.batching.epoch_plan import Window, cut_by_tokens, plan_epoch
from transformer_core.data.batching.representative import representative_order, sizes
from transformer_core.data.batching.window_rows import WindowRows
from transformer_core.data.sharding.shard_store import PairStore


@dataclass(frozen=True)
class GlobalBatch:
    """The batch of one optimizer step: this rank's micro-batches, and counts over all ranks."""

    epoch: int  # pass over the corpus, from 0
    index: int  # number within the epoch, from 0
    micro_batches: list[Batch]  # the batches of this rank, in order
    pairs: int  # sentence pairs, or rows of texts, over all ranks
    tokens: int  # non-padding source and target tokens, ends included, over all ranks
    target_tokens: int  # non-padding target tokens, ends included, over all ranks
    padded_tokens: int  # source and target tokens with padding, over all ranks


CUDA_PREFETCH = 2  # batches prepared ahead of a training on a GPU

Batches = Generator[GlobalBatch, None, None]
Sent = Generator[tuple[GlobalBatch, torch.cuda.Event], None, None]
"""Batches on their way to a device, each with an event at the end of its copies."""
T = TypeVar("T")


class Feed:
    """The global batches of a training, as one rank sees them.

    A global batch is divided into ``world_size * micro_batches`` parts; this rank gets the parts
    ``rank * micro_batches + m``, each padded to its own longest row. The counts over all ranks
    follow from the lengths, so ranks need not communicate. A thread prepares ``prefetch`` batches
    ahead; by default 2 on CUDA, and none on the CPU, where it would slow down the training.
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
        self.instead: GlobalBatch | None = None
        """A batch to yield until this is None again, without using up others. Not while a thread
        prepares batches."""
        self.representative = False
        """Whether batches come in an order in which any few in a row have about the mean size of
        all."""

    def batches(self, epoch: int = 0, batch: int = 0) -> Batches:
        """Yields global batches without end from this position on, epoch after epoch.

        They equal those of a feed that was never interrupted; the position after the last batch of
        an epoch means the start of the next. Close the generator to end its thread.

        Raises ValueError if the epoch has fewer batches.
        """
        made = self._make(self._batching, epoch, batch)
        if self._cuda:
            sent = self._sent(made)
            return self._received(self._ahead(sent) if self._prefetch else sent)
        return self._ahead(made) if self._prefetch else self._at_once(made)

    def fewer(self, pairs: int) -> GlobalBatch:
        """A global batch of so many pairs, laid out in rows like all others, on the CPU."""
        batching = FixedSize(kind="fixed_size", pairs=pairs, rows=self._batching.rows)
        with closing(self._make(batching, 0, 0)) as made:
            return next(made)

    def longest(self) -> GlobalBatch:
        """The global batch with the most tokens, padding included, among the first thousand or more,
        on the CPU."""
        window = next(plan_epoch(self.store, self._batching, self._seed, epoch=0))
        rows = WindowRows(self.store, window, self._parts, self._batching.rows)
        return self._batch(rows, window, 0, int(np.argmax(rows.padded_tokens)))

    def _make(self, batching: AnyBatching, epoch: int, batch: int) -> Batches:
        while True:
            for window in plan_epoch(self.store, batching, self._seed, epoch, batch):
                rows = WindowRows(self.store, window, self._parts, batching.rows)
                order = (
                    representative_order(sizes(rows)) if self.representative else range(len(window))
                )
                for index in islice(order, max(batch - window.first_batch, 0), None):
                    yield self._batch(rows, window, epoch, index)
            epoch, batch = epoch + 1, 0

    def _batch(self, rows: WindowRows, window: Window, epoch: int, index: int) -> GlobalBatch:
        return GlobalBatch(
            epoch=epoch,
            index=window.first_batch + index,
            micro_batches=[rows.batch(index, part) for part in self._own],
            pairs=rows.pairs[index],
            tokens=rows.tokens[index],
            target_tokens=rows.target_tokens[index],
            padded_tokens=rows.padded_tokens[index],
        )

    def _sent(self, made: Batches) -> Sent:
        """Starts copying batches to the device. Copies from page-locked memory, on a separate
        stream, overlap with the training."""
        stream = torch.cuda.Stream(self._device)
        with closing(made):
            for item in made:
                with torch.cuda.stream(stream):
                    there = [
                        m.pin().to(self._device, non_blocking=True) for m in item.micro_batches
                    ]
                yield replace(item, micro_batches=there), stream.record_event()

    def _received(self, sent: Sent) -> Batches:
        """Yields batches after telling the current stream, not the host, to wait for their copies."""
        with closing(sent):
            for item, arrived in sent:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(arrived)
                for micro in item.micro_batches:
                    micro.record_stream(stream)
                yield item

    def _at_once(self, made: Batches) -> Batches:
        """Yields batches as they are needed, or the one to yield instead."""
        with closing(made):
            while True:
                yield self.instead or next(made)

    def _ahead(self, made: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yields the same items while a thread prepares the next few."""
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
        # A new thread starts on device 0; pinning memory there would create a context on it.
        if self._cuda:
            torch.cuda.set_device(self._device)


def evaluation_batches(
    store: PairStore,
    max_pairs: int | None = None,
    *,
    pairs_per_batch: int | None = None,
    tokens_per_batch: int = 8_192,
) -> Iterator[tuple[Integers, Batch]]:
    """Yields the first ``max_pairs`` pairs (None: all), each once, with their numbers in the store.

    The longest come first, so that a lack of memory shows at once. A batch has ``pairs_per_batch``
    pairs or, if that is None, ``tokens_per_batch`` tokens with padding. The last may be smaller.
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


def gathered(store: PairStore, rows: Integers) -> Batch:
    """Reads the pairs, or rows of texts, ``rows`` of ``store`` as a batch."""
    in_rows = collate_texts if store.texts else collate
    return in_rows(store.source.gather(rows), store.target.gather(rows))
