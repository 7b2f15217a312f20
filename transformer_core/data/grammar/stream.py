"""The stream of sentence pairs: the same pair for the same seed, split and position."""

from collections.abc import Iterator
from random import Random

from schemas.data import Split
from transformer_core.data.grammar.patterns import pattern_table

CHUNK = 1_000
"""Pairs that come from one random stream; chunks are independent of each other."""


def generate(seed: int, split: Split, count: int) -> Iterator[tuple[str, str]]:
    """The first ``count`` (English, German) pairs of ``split``.

    A longer corpus begins with the shorter one; splits come from different random streams.
    """
    for chunk in range(-(-count // CHUNK)):
        yield from generate_chunk(seed, split, chunk)[: count - chunk * CHUNK]


def generate_chunk(seed: int, split: Split, chunk: int) -> list[tuple[str, str]]:
    """The pairs ``chunk * CHUNK`` … ``(chunk + 1) * CHUNK - 1`` of ``split``."""
    patterns = pattern_table()
    # Only random() keeps its sequence over all versions of Python, so nothing else is drawn.
    random = Random(f"{seed}/{split}/{chunk}").random
    pairs = []
    for _ in range(CHUNK):
        english, german = patterns[int(random() * len(patterns))](random)
        pairs.append((english[0].upper() + english[1:], german[0].upper() + german[1:]))
    return pairs
