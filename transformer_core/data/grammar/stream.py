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
    patterns = pattern_table()
    for chunk, start in enumerate(range(0, count, CHUNK)):
        # Only random() keeps its sequence over all versions of Python, so nothing else is drawn.
        random = Random(f"{seed}/{split}/{chunk}").random
        for _ in range(min(CHUNK, count - start)):
            english, german = patterns[int(random() * len(patterns))](random)
            yield english[0].upper() + english[1:], german[0].upper() + german[1:]
