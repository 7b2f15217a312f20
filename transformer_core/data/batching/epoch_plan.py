"""Plans the global batches of an epoch, window by window, from the lengths alone.

The plan depends only on lengths, batching, seed and epoch, so every variant and every number of
devices sees the same global batches in the same order.

An epoch goes through the corpus in windows of about :data:`WINDOW` pairs (more if batches are large,
so that enough pairs have similar lengths). Neither the time to the first batch nor memory grows with
the corpus. A corpus of one window is in perfectly random order. A larger one is cut into blocks of
:data:`BLOCK` neighbours, starting at a random place; a window takes blocks in random order, and
batches mix the pairs of a window. Neighbours in the corpus are thus in the same window, but hardly
ever in the same batch, and every pair occurs once an epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.config.data import AnyBatching, FixedSize
from transformer_core.data.arrays import Integers, ranges
from transformer_core.data.sharding.shard_store import PairStore

WINDOW = 2**17
"""Approximate number of pairs planned together: a hundredth of a second's work."""
LARGEST_WINDOW = 2**20  # limit of pairs planned together: some 100 MB
WINDOW_BATCHES = 1024
"""Wanted number of batches in a window: with fewer, lengths within a batch differ more, and padding
grows."""
BLOCK = 512
"""Neighbours in the corpus that are read together: some consecutive pages of the memory map."""


@dataclass(frozen=True)
class Window:
    """Some pairs of an epoch and the global batches that they form."""

    spans: Integers
    """[n, 2] the pairs start … stop - 1 of the corpus. The pairs of a window are numbered across
    its spans, in order."""
    order: Integers  # [pairs] numbers of the pairs in the window, batch after batch
    starts: Integers  # [batches + 1] limits of the batches in ``order``
    first_batch: int  # number of the first batch in the epoch

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def rows(self) -> list[Integers]:
        """The pairs of each batch, by their numbers in the corpus."""
        pairs = ranges(self.spans[:, 0], self.spans[:, 1] - self.spans[:, 0])[self.order]
        return np.split(pairs, self.starts[1:-1])


def plan_epoch(
    store: PairStore, batching: AnyBatching, seed: int, epoch: int, batch: int = 0
) -> Iterator[Window]:
    """Yields the windows of an epoch from the one that holds ``batch`` on, planned on demand.

    Arithmetic finds batches of a fixed size; with a token budget we must plan the windows before,
    too, in a small fraction of the time of training on them. Only lengths are read.

    TokenBudget bounds ``rows * (longest source + 1 + longest target + 1)`` of a batch (a longer
    pair is a batch by itself, and the last batch of a window may be small); FixedSize gives the
    number of pairs, and the last batch of the epoch is smaller.

    Raises ValueError after the last window if the epoch has fewer batches.
    """
    unit = batching.scaled_pairs if isinstance(batching, FixedSize) else 1
    units = -(-len(store) // unit)
    windows = max(1, round(units / max(1, _window(store, batching) // unit)))
    first_batch = 0
    for number in range(windows):
        begin, end = (units * n // windows for n in (number, number + 1))
        if isinstance(batching, FixedSize) and end <= batch:
            first_batch = end
            continue
        spans = _spans(begin * unit, min(end * unit, len(store)), len(store), seed, epoch)
        window = _plan_window(store, batching, spans, _random(seed, epoch, number), first_batch)
        first_batch += len(window)
        if first_batch > batch:
            yield window
    if not 0 <= batch <= first_batch:
        raise ValueError(f"batch {batch} of epoch {epoch}: the epoch has {first_batch} batches")


def divide(window: Window, parts: int) -> tuple[Integers, Integers]:
    """Deals the pairs of every batch out to ``parts`` (the micro-batches of all ranks).

    A part takes every ``parts``-th pair, so that all have similar lengths. Returns the numbers of
    the pairs in the window [pairs], part after part, and the limits of the parts
    [batches * parts + 1]; a part may be empty.
    """
    sizes = np.diff(window.starts)
    place = np.arange(len(window.order)) - np.repeat(window.starts[:-1], sizes)
    batch = np.repeat(np.arange(len(sizes)), sizes)
    part = np.arange(parts)
    part_sizes = (sizes[:, None] + parts - 1 - part) // parts
    starts = np.concatenate([[0], np.cumsum(part_sizes)])
    order = np.empty_like(window.order)
    order[starts[batch * parts + place % parts] + place // parts] = window.order
    return order, starts


def cut_by_tokens(
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    tokens: int,
    ends: int = 1,
) -> Integers:
    """[batches + 1] limits at which to cut pairs, in the given order, into batches of a token budget.

    Each batch takes as many pairs as fit, and at least one. Each length grows by ``ends``.
    """
    sources = source_lengths.astype(np.int64) + ends
    targets = target_lengths.astype(np.int64) + ends
    starts, start = [0], 0
    while start < len(sources):
        # The first pair bounds the number of rows, so we look at no more pairs than that.
        most = max(1, tokens // int(sources[start] + targets[start]))
        longest = np.maximum.accumulate(sources[start : start + most])
        longest += np.maximum.accumulate(targets[start : start + most])
        longest *= np.arange(1, len(longest) + 1)
        start += max(1, int(longest.searchsorted(tokens, side="right")))
        starts.append(start)
    return np.array(starts, np.int64)


def _window(store: PairStore, batching: AnyBatching) -> int:
    """Approximate number of pairs in a window."""
    if isinstance(batching, FixedSize):
        return WINDOW
    manifest = store.manifest
    tokens = manifest.source_tokens + manifest.target_tokens + 2 * store.ends * manifest.pairs
    wanted = WINDOW_BATCHES * batching.scaled_tokens * manifest.pairs // tokens
    return min(max(WINDOW, wanted), LARGEST_WINDOW)


def _plan_window(
    store: PairStore,
    batching: AnyBatching,
    spans: Integers,
    random: np.random.PCG64,
    first_batch: int,
) -> Window:
    pairs = int((spans[:, 1] - spans[:, 0]).sum())
    order = _permutation(random, pairs)
    if isinstance(batching, FixedSize):
        size = batching.scaled_pairs
        starts = np.minimum(np.arange(0, pairs + size, size, dtype=np.int64), pairs)
        return Window(spans, order, starts, first_batch)
    sources, targets = store.source.lengths(spans), store.target.lengths(spans)
    tokens = batching.scaled_tokens
    order = _by_length(sources, targets, order, tokens, random)
    starts = cut_by_tokens(sources[order], targets[order], tokens, store.ends)
    shuffled = _permutation(random, len(starts) - 1)
    sizes = np.diff(starts)[shuffled]
    order = order[ranges(starts[shuffled], sizes)]
    return Window(spans, order, np.concatenate([[0], np.cumsum(sizes)]), first_batch)


def _spans(begin: int, end: int, pairs: int, seed: int, epoch: int) -> Integers:
    """[n, 2] the pairs of the corpus at the places begin … end - 1 of an epoch.

    Blocks come in random order. The first starts at a random pair, and they wrap around the end of
    the corpus. The last block, which is shorter, keeps its place.
    """
    if end - begin == pairs:
        return np.array([[0, pairs]])
    random = _random(seed, epoch)
    shift, *keys = random.random_raw(1 + ROUNDS)
    whole = pairs // BLOCK
    places = np.arange(begin // BLOCK, -(-end // BLOCK))
    blocks = places.copy()
    blocks[places < whole] = permute(places[places < whole], whole, np.array(keys, np.uint64))
    # Only the part of the first and the last block between begin and end.
    starts = blocks * BLOCK + np.maximum(begin - places * BLOCK, 0)
    stops = blocks * BLOCK + np.minimum(end - places * BLOCK, BLOCK)
    limits = np.stack([starts, stops], axis=1) + int(shift) % pairs
    # A block that reaches beyond the end of the corpus continues at its beginning.
    spans = np.stack([np.minimum(limits, pairs), np.maximum(limits, pairs) - pairs], axis=1)
    spans = spans.reshape(-1, 2)
    return spans[spans[:, 0] < spans[:, 1]]


def _by_length(
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    shuffled: Integers,
    tokens: int,
    random: np.random.PCG64,
) -> Integers:
    """Orders pairs so that neighbours have similar source and target lengths.

    Bands of similar source length are sorted by target length, alternately up and down. Pairs of
    equal length keep their shuffled order, and the limits of the bands move with the epoch.
    """
    pairs = len(shuffled)
    # numpy sorts 16-bit numbers by radix, an order of magnitude faster.
    sources = np.minimum(source_lengths, 0xFFFF).astype(np.uint16)
    targets = np.minimum(target_lengths, 0xFFFF).astype(np.uint16)
    order = shuffled[np.argsort(sources[shuffled], kind="stable")]
    total = int(source_lengths.sum(dtype=np.int64) + target_lengths.sum(dtype=np.int64)) + 2 * pairs
    # We use as many bands as there are batches in a band, to balance source and target padding.
    bands = min(0xFFFF, max(1, round((total / tokens) ** 0.5)))
    shift = int(random.random_raw()) % max(pairs, 1)
    band = ((np.arange(pairs) * bands + shift) // max(pairs, 1)).astype(np.uint16)
    up_and_down = targets[order]
    np.subtract(0xFFFF, up_and_down, out=up_and_down, where=(band & 1).astype(bool))
    return order[np.lexsort((up_and_down, band))]


def _permutation(random: np.random.PCG64, count: int) -> Integers:
    return np.argsort(random.random_raw(count), kind="stable")


def _random(seed: int, *place: int) -> np.random.PCG64:
    """Random bits of an epoch, or of one of its windows. Unlike its distributions, the raw stream of
    a bit generator is the same in every version of numpy."""
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=place))


ROUNDS = 4


def permute(places: Integers, count: int, keys: NDArray[np.uint64]) -> Integers:
    """The numbers at ``places`` (each below ``count``) of the random order of 0 … count - 1 that
    the :data:`ROUNDS` ``keys`` choose; computes no other part of the order.

    A Feistel network with four rounds (Luby and Rackoff, SIAM J. Computing 17, 1988) permutes the
    numbers of an even count of bits. We permute a number outside 0 … count - 1 again until it falls
    inside (cycle walking: Black and Rogaway, CT-RSA 2002). The network covers fewer than four times
    ``count`` numbers, so this takes fewer than four turns on average.
    """
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    numbers = _rounds(places.astype(np.uint64), half, mask, keys)
    while len(outside := np.flatnonzero(numbers >= count)):
        numbers[outside] = _rounds(numbers[outside], half, mask, keys)
    return numbers.astype(np.int64)


def _rounds(
    numbers: NDArray[np.uint64], half: np.uint64, mask: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit flips about
    half of the output bits."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
