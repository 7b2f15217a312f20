"""The built-in corpus: generates any number of English-German sentence pairs from a seed.

Its grammar is real and its vocabulary small: three genders and cases, adjective endings, agreement,
separable and reflexive verbs, verb-second and verb-final order, two kinds of negation, German
numerals. Models must learn to reorder, since German and English differ in word order.

No tokenizer finds 30,000 pieces in the vocabulary of some 5,000 words. Real text has many more words
because of its names, which are the same in both languages. We can therefore replace names by
invented ones, few of them frequent and most rare: we draw the n-th with a probability of about 1/n
(Zipf, Human Behavior and the Principle of Least Effort, 1949).
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, chain, islice, product
from random import Random

import numpy as np
from numpy.typing import NDArray

from schemas.config.data import Split
from transformer_core.data.grammar.clauses import Random as Draw
from transformer_core.data.grammar.sentences import PATTERNS, capital
from transformer_core.data.grammar.words import CITIES, FIRST_NAMES, Pair, words

CHUNK = 1_000  # pairs from one random stream; chunks are independent of each other


def generate(seed: int, split: Split, numbers: range, names: int = 0) -> Iterator[Pair]:
    """Yields the (English, German) pairs of ``split`` with these consecutive ``numbers``, from 0.

    Splits come from different random streams. If ``names`` is not 0, that many invented names
    replace those of words.yaml.
    """
    first = numbers.start // CHUNK
    chunks = range(first, -(-numbers.stop // CHUNK))
    made = chain.from_iterable(generate_chunk(seed, split, chunk, names) for chunk in chunks)
    return islice(made, numbers.start - first * CHUNK, numbers.stop - first * CHUNK)


def generate_chunk(seed: int, split: Split, chunk: int, names: int = 0) -> list[Pair]:
    """The pairs ``chunk * CHUNK`` … ``(chunk + 1) * CHUNK - 1`` of ``split``."""
    # Only random() gives the same sequence in all versions of Python, so we call nothing else.
    random = Random(f"{seed}/{split}/{chunk}").random
    new_names = draw_names(Random(f"{seed}/{split}/{chunk}/names").random, names)
    pairs = []
    for _ in range(CHUNK):
        pair = capital(PATTERNS[int(random() * len(PATTERNS))](random))
        pairs.append(rename(pair, new_names) if names else pair)
    return pairs


_STRIDE = 1_000_003
"""A prime that does not divide the number of combinations, so that names of neighbouring ranks look
different."""

_AT_ONCE = 1_000  # names looked up together, which is faster than one by one
_KNOWN = {*FIRST_NAMES, *(english for english, german in CITIES if english == german)}
# Each name by itself and by its genitive (Annas), unless that is a name too.
_NAMES = {f"{name}s": name for name in _KNOWN} | {name: name for name in _KNOWN}
_WORD = re.compile(f"({'|'.join(sorted(_NAMES, key=len, reverse=True))})(?![a-z])")


@cache
def invented_names(count: int) -> list[str]:
    """The first ``count`` names, most frequent first."""
    parts = list(product(*map(words, ("onsets", "vowels", "middles", "ends"))))
    names: dict[str, None] = {}
    for rank in range(len(parts)):
        if len(names) == count:
            break
        # Two combinations may give the same name, which counts once.
        names["".join(parts[rank * _STRIDE % len(parts)])] = None
    return list(names)


@cache
def _up_to(count: int) -> NDArray[np.float64]:
    """[count] sums of 1/n over the ranks of ``count`` names."""
    return np.array(list(accumulate(1 / rank for rank in range(1, count + 1))))


def draw_names(random: Draw, count: int) -> Iterator[str]:
    """Draws names without end from the first ``count`` invented ones, by Zipf's law."""
    names, sums = invented_names(count), _up_to(count)
    while True:
        drawn = np.array([random() for _ in range(_AT_ONCE)]) * sums[-1]
        # A draw that rounding moves beyond the last sum gives the last name.
        for rank in np.searchsorted(sums[:-1], drawn, side="right").tolist():
            yield names[rank]


def rename(pair: Pair, names: Iterator[str]) -> Pair:
    """Replaces every name that occurs in both sentences by the next of ``names``.

    The new name takes the place and the ending (``Anna's``, ``Annas``) in both sentences.
    """
    # The split puts names at odd places.
    english = _WORD.split(pair[0])
    if len(english) == 1:
        return pair
    german = _WORD.split(pair[1])
    german_names = {_NAMES[word] for word in german[1::2]}
    named = dict.fromkeys(_NAMES[word] for word in english[1::2])
    others = {name: next(names) for name in named if name in german_names}
    return _replaced(english, others), _replaced(german, others)


def _replaced(pieces: list[str], others: dict[str, str]) -> str:
    """Joins the pieces of a sentence, whose names are at odd places, with ``others`` for names."""
    for place in range(1, len(pieces), 2):
        word = pieces[place]
        name = _NAMES[word]
        if name in others:
            pieces[place] = others[name] + word[len(name) :]
    return "".join(pieces)
