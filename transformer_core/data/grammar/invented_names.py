"""Invented names of persons and places, so that a generated corpus has as many words as real text.

The lexicon has some 5,000 words, and no tokenizer finds 30,000 pieces in them. Real text has many
more because of its names, which are the same in both languages. So names of the lexicon give way
to invented ones, of which few are frequent and most are rare: the n-th is drawn with a probability
of about 1/n (Zipf, Human Behavior and the Principle of Least Effort, 1949).
"""

import re
from bisect import bisect
from functools import cache
from itertools import accumulate, product

from transformer_core.data.grammar.phrases import Random
from transformer_core.data.grammar.proper_names import CITIES, FIRST_NAMES


def _split(text: str) -> list[str]:
    return text.split()


_ONSETS = _split("B Br D F Fl G Gr H J K Kl L M N P Pr R S Sch St T Tr V W Z")
_VOWELS = _split("a e i o u ai au ei")
_MIDDLES = _split("b d g l ld lm m n nd ng r rb rd rk rl rm rn s sk st t v x z")
_ENDS = _split(
    "an as berg burg dal en er eth feld fort han hausen heim hold ick ia ik in ing is itz"
)
_ENDS += _split("ka land lin ling low mann mar mund nach ner o ov ow rath ren ris ro ros sen son")
_ENDS += _split("stad stedt ston sund tal ten thal ton una us vik wald wick yn")

MOST_NAMES = 200_000
"""Invented names at most."""

_STRIDE = 1_000_003
"""A prime that does not divide the number of combinations, so that names next to each other in rank
look different."""

_KNOWN = frozenset([*FIRST_NAMES, *(english for english, german in CITIES if english == german)])
_CAPITALISED = re.compile("[A-Z][a-z]+")


@cache
def invented_names(count: int) -> list[str]:
    """The first ``count`` names, the most frequent first; ValueError for more than MOST_NAMES."""
    if count > MOST_NAMES:
        raise ValueError(f"there are {MOST_NAMES} invented names, not {count}")
    parts = list(product(_ONSETS, _VOWELS, _MIDDLES, _ENDS))
    # Some come about in two ways.
    names = dict.fromkeys("".join(parts[rank * _STRIDE % len(parts)]) for rank in range(len(parts)))
    return list(names)[:count]


@cache
def _up_to(count: int) -> list[float]:
    """Sums of 1/n over the ranks of ``count`` names."""
    return list(accumulate(1 / rank for rank in range(1, count + 1)))


def draw_name(random: Random, count: int) -> str:
    """One of the first ``count`` invented names, by Zipf's law."""
    sums = _up_to(count)
    return invented_names(count)[bisect(sums, random() * sums[-1], hi=count - 1)]


def rename(pair: tuple[str, str], random: Random, count: int) -> tuple[str, str]:
    """A sentence pair with an invented name for every name that both sentences have.

    A name keeps its place, its ending (``Anna's``, ``Annas``) and its twin in the other sentence.
    """
    english, german = pair
    named = dict.fromkeys(filter(None, map(_name, _CAPITALISED.findall(english))))
    if not named:
        return pair
    german_names = set(map(_name, _CAPITALISED.findall(german)))
    others = {name: draw_name(random, count) for name in named if name in german_names}

    def other(found: re.Match[str]) -> str:
        word = found[0]
        name = _name(word)
        return others[name] + word[len(name) :] if name in others else word

    return _CAPITALISED.sub(other, english), _CAPITALISED.sub(other, german)


def _name(word: str) -> str:
    """The known name in a word, which may be a genitive (``Annas``); empty if there is none."""
    if word in _KNOWN:
        return word
    return word[:-1] if word.endswith("s") and word[:-1] in _KNOWN else ""
