"""The stream of sentence pairs: the same pair for the same seed, split and position."""

from collections.abc import Iterator
from random import Random

from schemas.config.corpus import Split
from transformer_core.data.grammar.invented_names import draw_names, rename
from transformer_core.data.grammar.patterns import pattern_table

CHUNK = 1_000
"""Pairs that come from one random stream; chunks are independent of each other."""


def generate(seed: int, split: Split, count: int, names: int = 0) -> Iterator[tuple[str, str]]:
    """The first ``count`` (English, German) pairs of ``split``.

    A longer corpus begins with the shorter one; splits come from different random streams. With
    ``names``, that many invented names take the place of those of the lexicon.
    """
    for chunk in range(-(-count // CHUNK)):
        yield from generate_chunk(seed, split, chunk, names)[: count - chunk * CHUNK]


def generate_chunk(seed: int, split: Split, chunk: int, names: int = 0) -> list[tuple[str, str]]:
    """The pairs ``chunk * CHUNK`` … ``(chunk + 1) * CHUNK - 1`` of ``split``."""
    patterns = pattern_table()
    # Only random() keeps its sequence over all versions of Python, so nothing else is drawn.
    random = Random(f"{seed}/{split}/{chunk}").random
    new_names = draw_names(Random(f"{seed}/{split}/{chunk}/names").random, names)
    pairs = []
    for _ in range(CHUNK):
        english, german = patterns[int(random() * len(patterns))](random)
        pair = (english[0].upper() + english[1:], german[0].upper() + german[1:])
        pairs.append(rename(pair, new_names) if names else pair)
    return pairs
