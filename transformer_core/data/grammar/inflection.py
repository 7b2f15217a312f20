"""Noun phrases: determiner, adjective and noun in agreement, tabulated once."""

from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from transformer_core.data.grammar.adjectives import Adjective
from transformer_core.data.grammar.lexicon import GROUPS
from transformer_core.data.grammar.nouns import Noun
from transformer_core.data.grammar.proper_names import FIRST_NAMES, SURNAMES

Case = Literal["nominative", "accusative", "dative"]
_GENDERS = "mfnp"
_NUMBERS = {
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
    "ten": "zehn",
    "eleven": "elf",
    "twelve": "zwölf",
}

# Endings for masculine, feminine, neuter, plural.
_WEAK = {"nominative": "e e e en", "accusative": "en e e en", "dative": "en en en en"}
_MIXED = {"nominative": "er e es en", "accusative": "en e es en", "dative": "en en en en"}
_STRONG = {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"}
_DER = {
    "nominative": "der die das die",
    "accusative": "den die das die",
    "dative": "dem der dem den",
}
_DIES = {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"}
_EIN = {"nominative": "- e - e", "accusative": "en e - e", "dative": "em er em en"}


class Determiner(NamedTuple):
    """A determiner: how it inflects and which adjective endings follow it."""

    english: str
    english_plural: str
    stem: str
    endings: dict[str, str]
    adjective: dict[str, str]


class Phrase(NamedTuple):
    """A noun phrase in one case; gender is p for a plural."""

    english: str
    german: str
    gender: str


def _invariant(english: str, german: str) -> Determiner:
    endings = dict.fromkeys(_WEAK, "- - - -")
    return Determiner(english, english, german, endings, _STRONG)


_THE = Determiner("the", "the", "", _DER, _WEAK)
_A = Determiner("a", "", "ein", _EIN, _MIXED)
_EVERY = Determiner("every", "", "jed", _DIES, _WEAK)
_DEFINITE = [
    Determiner("this", "these", "dies", _DIES, _WEAK),
    Determiner("my", "my", "mein", _EIN, _MIXED),
    Determiner("our", "our", "unser", _EIN, _MIXED),
    Determiner("his", "his", "sein", _EIN, _MIXED),
    Determiner("her", "her", "ihr", _EIN, _MIXED),
]
_OWNERS = [_invariant(f"{name}'s", f"{name}s") for name in ("Anna", "Emma", "Karl", "Paul")]
_PLURALS = [
    _invariant("", ""),
    _invariant("many", "viele"),
    _invariant("some", "einige"),
    *(_invariant(english, german) for english, german in _NUMBERS.items()),
]


def _ending(table: dict[str, str], case: Case, gender: str) -> str:
    ending = table[case].split()[_GENDERS.index(gender)]
    return "" if ending == "-" else ending


def _german_noun(noun: Noun, case: Case, plural: bool) -> str:
    if not plural:
        return noun.german if case == "nominative" else noun.oblique
    if case == "dative" and not noun.german_plural.endswith(("n", "s")):
        return noun.german_plural + "n"
    return noun.german_plural


def phrase(
    determiner: Determiner, adjective: Adjective | None, noun: Noun, case: Case, plural: bool
) -> Phrase:
    """The noun phrase of these words in one case."""
    gender = "p" if plural else noun.gender
    stem = determiner.stem
    if determiner.english in ("many", "some") and case == "dative":
        stem += "n"
    german = [stem + _ending(determiner.endings, case, gender)]
    english = [determiner.english_plural if plural else determiner.english]
    if adjective is not None:
        german.append(adjective.stem + _ending(determiner.adjective, case, gender))
        english.append(adjective.english)
    german.append(_german_noun(noun, case, plural))
    english.append(noun.english_plural if plural else noun.english)
    if english[0] == "a" and english[1][0] in "aeiou":
        english[0] = "an"
    return Phrase(" ".join(filter(None, english)), " ".join(filter(None, german)), gender)


def _with_adjectives(
    group: str, determiner: Determiner, case: Case, plural: bool
) -> Iterator[Phrase]:
    """Half of the phrases have no adjective."""
    nouns, adjectives = GROUPS[group]
    for noun in nouns:
        plain = phrase(determiner, None, noun, case, plural)
        for adjective in adjectives:
            yield plain
            yield phrase(determiner, adjective, noun, case, plural)


@cache
def the_phrases(group: str, case: Case) -> list[Phrase]:
    """Phrases with the definite article."""
    numbers = [False] if group == "drinks" else [False, True]
    return [item for plural in numbers for item in _with_adjectives(group, _THE, case, plural)]


@cache
def definite_phrases(group: str, case: Case) -> list[Phrase]:
    """Phrases that name something known: negated with nicht."""
    found = the_phrases(group, case) * 6
    if group == "drinks":
        return found
    for determiner in [*_DEFINITE * 2, *_OWNERS]:
        for plural in (False, True):
            found += _with_adjectives(group, determiner, case, plural)
    return found


@cache
def indefinite_phrases(group: str, case: Case) -> list[Phrase]:
    """Singular phrases with ein, bare ones for drinks: negated with kein."""
    if group == "drinks":
        return list(_with_adjectives(group, _invariant("", ""), case, False))
    return list(_with_adjectives(group, _A, case, False))


@cache
def no_phrases(group: str, case: Case) -> list[Phrase]:
    """The German of :func:`indefinite_phrases` with kein, the English unchanged."""
    none = Determiner("a", "", "kein", _EIN, _MIXED)
    if group == "drinks":
        none = none._replace(english="")
    return list(_with_adjectives(group, none, case, False))


@cache
def counted_phrases(group: str, case: Case) -> list[Phrase]:
    """Plural phrases with a number, many, some or nothing, and singular ones with every."""
    if group == "drinks":
        return indefinite_phrases(group, case)
    found = list(_with_adjectives(group, _EVERY, case, False))
    for determiner in _PLURALS:
        found += _with_adjectives(group, determiner, case, True)
    return found


@cache
def names(case: Case) -> list[tuple[str, str]]:
    """Names of persons: first names, and surnames with Mr and Mrs."""
    mister = "Herr" if case == "nominative" else "Herrn"
    found = [(name, name) for name in FIRST_NAMES] * 3
    for surname in SURNAMES:
        found.append((f"Mr {surname}", f"{mister} {surname}"))
        found.append((f"Mrs {surname}", f"Frau {surname}"))
    return found
