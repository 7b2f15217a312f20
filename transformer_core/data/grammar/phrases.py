"""Noun phrases, subjects and objects: agreement tabulated once, and drawn at random."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from transformer_core.data.grammar.words import (
    ADJECTIVES,
    CITIES,
    FIRST_NAMES,
    NOUNS,
    OBJECT_PRONOUNS,
    SURNAMES,
    THIRD,
    THIRD_PLURAL,
    Adjective,
    Noun,
    Verb,
    number_words,
    pairs,
)

Random = Callable[[], float]
"""Draws a number from 0 up to, not including, 1."""
Subject = tuple[str, str, int]
"""English, German, grammatical person."""
Piece = tuple[str, str, str, str]
"""English; German pronouns; what is known; what is new. Each begins with a space or is empty."""
T = TypeVar("T")
Case = Literal["nominative", "accusative", "dative"]
_GENDERS = "mfnp"

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
    *(_invariant(*number_words(number)) for number in range(2, 13)),
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
    for noun in NOUNS[group]:
        plain = phrase(determiner, None, noun, case, plural)
        for adjective in ADJECTIVES[group]:
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


# Which object pronouns would have to be reflexive after a subject of that person.
_OWN_PRONOUNS = (("me", "us"), ("you",), (), ("me", "us"), ("them",))


def pick(random: Random, options: Sequence[T]) -> T:
    """One of ``options``."""
    return options[int(random() * len(options))]


@cache
def cities() -> list[tuple[str, str, str, str]]:
    """Local and directional phrases of cities: English, German, English, German."""
    return [
        (f"in {english}", f"in {german}", f"to {english}", f"nach {german}")
        for english, german in CITIES
    ]


@cache
def subjects() -> list[list[Subject]]:
    """Subjects in three lists: names, pronouns, noun phrases."""
    people: list[Subject] = [(*name, THIRD) for name in names("nominative")]
    for first, second in zip(FIRST_NAMES, FIRST_NAMES[7:], strict=False):
        people.append((f"{first} and {second}", f"{first} und {second}", THIRD_PLURAL))
        people.append((f"{first} and I", f"{first} und ich", 3))
    phrases = [*definite_phrases("persons", "nominative")] * 2
    phrases += indefinite_phrases("persons", "nominative")
    phrases += counted_phrases("persons", "nominative")
    pronouns: list[Subject] = [
        (*pair, person) for pair, person in zip(pairs("pronouns"), (0, 1, 2, 2, 3, 4), strict=True)
    ]
    return [people, pronouns, [as_subject(each) for each in phrases]]


def as_subject(phrase: Phrase) -> Subject:
    """A noun phrase in the nominative as a subject."""
    return phrase.english, phrase.german, THIRD_PLURAL if phrase.gender == "p" else THIRD


def pick_subject(random: Random) -> Subject:
    """A person or persons, as a name, a pronoun or a noun phrase."""
    return pick(random, subjects()[int(random() * 3)])


@cache
def _phrases(
    group: str, case: Case
) -> tuple[list[Phrase], list[Phrase], list[Phrase], list[Phrase]]:
    return (
        definite_phrases(group, case),
        indefinite_phrases(group, case),
        no_phrases(group, case),
        counted_phrases(group, case),
    )


def noun_object(
    random: Random, group: str, case: Case, preposition: str = "", negated: bool = False
) -> Piece:
    """A noun phrase as an object, with its negation if it is ``negated``."""
    definite, indefinite, without, counted = _phrases(group, case)
    kind = random()
    if kind < 0.5:
        english, german, _ = pick(random, definite)
        return _known(english, german, preposition, negated)
    if negated or kind < 0.75:
        position = int(random() * len(indefinite))
        german = (without if negated else indefinite)[position].german
        return f" {indefinite[position].english}", "", "", f"{preposition} {german}"
    english, german, _ = pick(random, counted)
    return f" {english}", "", "", f"{preposition} {german}"


def person_object(
    random: Random, person: int, case: Case, preposition: str = "", negated: bool = False
) -> Piece:
    """A pronoun, a name or a noun phrase as the object of a subject in ``person``."""
    kind = random()
    if kind >= 0.4:
        return noun_object(random, "persons", case, preposition, negated)
    if kind >= 0.2:
        english, german = pick(random, names(case))
        return _known(english, german, preposition, negated)
    english, german = pick(random, OBJECT_PRONOUNS[case])
    while english in _OWN_PRONOUNS[person]:
        english, german = pick(random, OBJECT_PRONOUNS[case])
    if preposition:
        return _known(english, german, preposition, negated)
    return f" {english}", f" {german}", "", " nicht" if negated else ""


def _known(english: str, german: str, preposition: str, negated: bool) -> Piece:
    nicht = " nicht" if negated else ""
    if preposition:
        return f" {english}", "", "", f"{nicht}{preposition} {german}"
    return f" {english}", "", f" {german}", nicht


def verb_object(random: Random, verb: Verb, person: int, negated: bool = False) -> Piece:
    """Something that ``verb`` takes as its object, with its negation if it is ``negated``."""
    group = pick(random, verb.groups)
    if group == "persons":
        return person_object(random, person, verb.case, verb.preposition, negated)
    return noun_object(random, group, verb.case, verb.preposition, negated)
