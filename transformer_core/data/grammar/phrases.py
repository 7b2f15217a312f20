"""Subjects and objects, drawn at random, with the pieces they put into a clause."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from transformer_core.data.grammar.inflection import (
    Case,
    Phrase,
    counted_phrases,
    definite_phrases,
    indefinite_phrases,
    names,
    no_phrases,
)
from transformer_core.data.grammar.proper_names import CITIES, FIRST_NAMES
from transformer_core.data.grammar.verbs import THIRD, THIRD_PLURAL, Verb

Random = Callable[[], float]
"""Draws a number from 0 up to, not including, 1."""
Subject = tuple[str, str, int]
"""English, German, grammatical person."""
Piece = tuple[str, str, str, str]
"""English; German pronouns; what is known; what is new. Each begins with a space or is empty."""
T = TypeVar("T")

_PRONOUNS: list[Subject] = [
    ("I", "ich", 0),
    ("you", "du", 1),
    ("he", "er", 2),
    ("she", "sie", 2),
    ("we", "wir", 3),
    ("they", "sie", 4),
]
_OBJECT_PRONOUNS: dict[Case, list[tuple[str, str]]] = {
    "accusative": [
        ("me", "mich"),
        ("you", "dich"),
        ("him", "ihn"),
        ("her", "sie"),
        ("us", "uns"),
        ("them", "sie"),
    ],
    "dative": [
        ("me", "mir"),
        ("you", "dir"),
        ("him", "ihm"),
        ("her", "ihr"),
        ("us", "uns"),
        ("them", "ihnen"),
    ],
}
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
    nouns = [(p.english, p.german, THIRD_PLURAL if p.gender == "p" else THIRD) for p in phrases]
    return [people, _PRONOUNS, nouns]


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
    english, german = pick(random, _OBJECT_PRONOUNS[case])
    while english in _OWN_PRONOUNS[person]:
        english, german = pick(random, _OBJECT_PRONOUNS[case])
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
