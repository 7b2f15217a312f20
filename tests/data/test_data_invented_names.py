"""Invented names: the same in both languages, many of them, and few that are frequent."""

import re
from bisect import bisect
from collections import Counter
from itertools import accumulate, islice
from random import Random

import pytest

from transformer_core.data.grammar.stream import draw_names, generate, invented_names, rename
from transformer_core.data.grammar.words import FIRST_NAMES

NAMES = 60_000
PAIRS = 3_000


@pytest.fixture(scope="module")
def plain() -> list[tuple[str, str]]:
    return list(generate(1, "train", PAIRS))


@pytest.fixture(scope="module")
def renamed() -> list[tuple[str, str]]:
    return list(generate(1, "train", PAIRS, NAMES))


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_names_are_different_and_stay_as_they_are() -> None:
    names = invented_names(NAMES)
    assert len(set(names)) == NAMES
    assert names[:2] == invented_names(2)
    with pytest.raises(ValueError, match="not 300000"):
        invented_names(300_000)


def test_only_names_change(plain, renamed) -> None:
    changed = 0
    for (english, german), (other_english, other_german) in zip(plain, renamed, strict=True):
        for before, after in ((english, other_english), (german, other_german)):
            assert len(words(before)) == len(words(after))
            for old, new in zip(words(before), words(after), strict=True):
                changed += old != new
                assert old == new or old[0].isupper()
    assert changed > PAIRS / 2


def test_a_name_is_the_same_in_both_sentences(plain, renamed) -> None:
    for (english, german), (other_english, other_german) in zip(plain, renamed, strict=True):
        for name in FIRST_NAMES:
            if re.search(rf"\b{name}\b", english) and re.search(rf"\b{name}\b", german):
                at, there = words(english).index(name), words(german).index(name)
                assert words(other_english)[at] == words(other_german)[there] != name


def test_few_names_are_frequent_and_most_are_rare(renamed) -> None:
    known = set(invented_names(NAMES))
    counts = Counter(word for pair in renamed for word in words(pair[0]) if word in known)
    first = [counts[name] for name in invented_names(3)]
    assert first == sorted(first, reverse=True)
    assert sum(count == 1 for count in counts.values()) > len(counts) / 2


def test_the_vocabulary_grows(plain, renamed) -> None:
    sizes = [
        len({w for pair in pairs for text in pair for w in words(text)})
        for pairs in (plain, renamed)
    ]
    assert sizes[1] > 1.3 * sizes[0]


def test_every_name_of_both_sentences_is_replaced_by_the_next_one() -> None:
    pair = "Anna's Jonas met Mia, Annas and Paris.", "Annas Jonas traf Mia, Anna und Parisien."
    found = rename(pair, iter(["One", "Two", "Three"]))
    assert found == (
        "One's Two met Three, Ones and Paris.",
        "Ones Two traf Three, One und Parisien.",
    )


@pytest.mark.parametrize("count", [1, 2, NAMES])
def test_names_are_drawn_one_by_one_or_together_alike(count: int) -> None:
    sums = list(accumulate(1 / rank for rank in range(1, count + 1)))
    random = Random("seed").random
    ranks = (bisect(sums, random() * sums[-1], hi=count - 1) for _ in range(2_500))
    one_by_one = [invented_names(count)[rank] for rank in ranks]
    assert list(islice(draw_names(Random("seed").random, count), 2_500)) == one_by_one
