"""Batches for a training and for an evaluation."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.data import AnyBatching
from transformer_core.data.batching import EpochPlan, cut_by_tokens, part_rows, plan_epoch
from transformer_core.data.collate import Batch, collate
from transformer_core.data.store import PairStore

__all__ = ["Batch", "Feed", "GlobalBatch", "evaluation_batches"]


@dataclass(frozen=True)
class GlobalBatch:
    """One optimizer step: this rank's micro-batches, and the counts over all ranks."""

    epoch: int
    """Pass over the corpus, from 0."""
    index: int
    """Number within the epoch, from 0."""
    micro_batches: list[Batch]
    """What this rank works on, in order."""
    pairs: int
    """Sentence pairs, over all ranks."""
    tokens: int
    """Non-padding source and target tokens, ends included, over all ranks."""
    target_tokens: int
    """Non-padding target tokens, ends included, over all ranks."""
    padded_tokens: int
    """Source and target tokens with padding, over all ranks."""


class Feed:
    """The global batches of a training, as one rank sees them.

    A global batch is divided into ``world_size * micro_batches`` parts; this rank gets the parts
    ``rank * micro_batches + m``, each padded to its own longest row. The counts over all ranks
    follow from the lengths, so that ranks need not talk.

    Args:
        store: the training pairs.
        batching: how pairs become global batches.
        seed: seed of their order.
        rank: number of this process.
        world_size: number of processes.
        micro_batches: micro-batches per process and step.
        device: where the batches go.
        prefetch: batches prepared ahead by a thread; by default 2 on CUDA, and none on the CPU,
            where the thread would take time from the training.
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
        self._first_part = rank * micro_batches
        self._micro_batches = micro_batches
        self._parts = world_size * micro_batches
        self._device = device
        self._cuda = device.type == "cuda"
        self._prefetch = (2 if self._cuda else 0) if prefetch is None else prefetch

    def plan(self, epoch: int) -> EpochPlan:
        """The global batches of an epoch, the same on every rank."""
        store = self.store
        return plan_epoch(
            store.source_lengths, store.target_lengths, self._batching, self._seed, epoch
        )

    def batches(self, epoch: int = 0, batch: int = 0) -> Generator[GlobalBatch, None, None]:
        """Endless global batches from this position on, one epoch after the other.

        They are those of a feed that was never interrupted; the position after the last batch of
        an epoch is the start of the next. Close the generator to end its thread.

        Raises ValueError if the epoch has fewer batches.
        """
        made = self._make(epoch, batch)
        if self._prefetch:
            made = self._ahead(made)
        with closing(made):
            for item in made:
                yield replace(
                    item,
                    micro_batches=[
                        micro.to(self._device, non_blocking=self._cuda)
                        for micro in item.micro_batches
                    ],
                )

    def _make(self, epoch: int, batch: int) -> Generator[GlobalBatch, None, None]:
        while True:
            plan = self.plan(epoch)
            if not 0 <= batch <= len(plan):
                raise ValueError(f"batch {batch} of epoch {epoch}: it has {len(plan)} batches")
            for index in range(batch, len(plan)):
                yield self._global_batch(plan, epoch, index)
            epoch, batch = epoch + 1, 0

    def _global_batch(self, plan: EpochPlan, epoch: int, index: int) -> GlobalBatch:
        own = range(self._first_part, self._first_part + self._micro_batches)
        micro_batches = [
            collate(self.store, part_rows(plan, index, part, self._parts)) for part in own
        ]
        rows = plan.rows(index)
        sources = self.store.source_lengths[rows].astype(np.int64) + 1
        targets = self.store.target_lengths[rows].astype(np.int64) + 1
        longest = _longest(sources, self._parts) + _longest(targets, self._parts)
        sizes = (len(rows) + self._parts - 1 - np.arange(self._parts)) // self._parts
        return GlobalBatch(
            epoch=epoch,
            index=index,
            micro_batches=[m.pin() for m in micro_batches] if self._cuda else micro_batches,
            pairs=len(rows),
            tokens=int(sources.sum() + targets.sum()),
            target_tokens=int(targets.sum()),
            # A part without pairs is one row of one token on each side.
            padded_tokens=int((np.maximum(sizes, 1) * longest).sum()),
        )

    def _ahead(
        self, made: Generator[GlobalBatch, None, None]
    ) -> Generator[GlobalBatch, None, None]:
        """The same batches, the next few of them made by a thread meanwhile."""
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
    sources, targets = store.source_lengths[:count], store.target_lengths[:count]
    order = np.lexsort((targets, sources))[::-1]
    if pairs_per_batch is None:
        starts = cut_by_tokens(sources[order], targets[order], tokens_per_batch)
    else:
        starts = np.minimum(np.arange(0, count + pairs_per_batch, pairs_per_batch), count)
    for start, end in pairwise(starts):
        yield order[start:end], collate(store, order[start:end])


def _longest(lengths: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """[parts] the longest row of each part ``lengths[part::parts]``; 1 for a part without rows."""
    padded = np.ones(-(-len(lengths) // parts) * parts, np.int64)
    padded[: len(lengths)] = lengths
    return padded.reshape(-1, parts).max(axis=0)
