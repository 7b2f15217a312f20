"""Patterns about what things are like and what is done to them."""

from functools import cache

from transformer_core.data.grammar.adjectives import PERSON_ADJECTIVES, Adjective
from transformer_core.data.grammar.inflection import definite_phrases, names, the_phrases
from transformer_core.data.grammar.lexicon import GROUPS
from transformer_core.data.grammar.phrases import (
    Random,
    Subject,
    cities,
    pick,
    pick_subject,
)
from transformer_core.data.grammar.proper_names import DIRECTIONS
from transformer_core.data.grammar.times import times
from transformer_core.data.grammar.verbs import THIRD, THIRD_PLURAL, Verb, verbs

Pair = tuple[str, str]

_BE = ("am", "are", "is", "are", "are")
_WAS = ("was", "were", "was", "were", "were")
_BIN = ("bin", "bist", "ist", "sind", "sind")
_WAR = ("war", "warst", "war", "waren", "waren")
_KAM = ("kam", "kamst", "kam", "kamen", "kamen")
_DEGREES = [
    ("", ""),
    ("", ""),
    ("very ", "sehr "),
    ("too ", "zu "),
    ("quite ", "ziemlich "),
    ("not ", "nicht "),
    ("no longer ", "nicht mehr "),
]
_THINGS = ("writings", "goods", "machines", "food", "drinks", "buildings", "animals")


def _thing(random: Random, group: str) -> Subject:
    english, german, gender = pick(random, definite_phrases(group, "nominative"))
    return english, german, THIRD_PLURAL if gender == "p" else THIRD


def _described(random: Random) -> tuple[Subject, list[Adjective]]:
    """Somebody or something, and the adjectives that can be said of it."""
    if random() < 0.4:
        return pick_subject(random), PERSON_ADJECTIVES
    group = pick(random, _THINGS)
    return _thing(random, group), GROUPS[group][1]


def _quality(random: Random, adjectives: list[Adjective]) -> Pair:
    """One or two adjectives with a degree."""
    first, second = pick(random, adjectives), pick(random, adjectives)
    degree, grad = pick(random, _DEGREES)
    if first is second or random() < 0.6:
        return f"{degree}{first.english}", f"{grad}{first.german}"
    if degree in ("not ", "no longer "):
        return f"{first.english} but {degree}{second.english}", (
            f"{first.german}, aber {grad}{second.german}"
        )
    return f"{degree}{first.english} and {second.english}", (
        f"{grad}{first.german} und {second.german}"
    )


def description(random: Random) -> Pair:
    """The house is very old and expensive."""
    subject, adjectives = _described(random)
    quality, eigenschaft = _quality(random, adjectives)
    person = subject[2]
    if random() < 0.3:
        return (
            f"{subject[0]} {_WAS[person]} {quality}.",
            f"{subject[1]} {_WAR[person]} {eigenschaft}.",
        )
    return f"{subject[0]} {_BE[person]} {quality}.", f"{subject[1]} {_BIN[person]} {eigenschaft}."


def comparison(random: Random) -> Pair:
    """The house is older than the church, or as old as it."""
    group = pick(random, (*_THINGS, "persons"))
    if group == "persons":
        subject, other = pick_subject(random), pick(random, names("nominative"))
        adjectives = PERSON_ADJECTIVES
    else:
        subject, other = _thing(random, group), _thing(random, group)[:2]
        adjectives = GROUPS[group][1]
    adjective = pick(random, [item for item in adjectives if item.german_more])
    be, bin_ = _BE[subject[2]], _BIN[subject[2]]
    if random() < 0.7:
        return (
            f"{subject[0]} {be} {adjective.english_more} than {other[0]}.",
            f"{subject[1]} {bin_} {adjective.german_more} als {other[1]}.",
        )
    negation, nicht = ("not ", "nicht ") if random() < 0.4 else ("", "")
    return (
        f"{subject[0]} {be} {negation}as {adjective.english} as {other[0]}.",
        f"{subject[1]} {bin_} {nicht}so {adjective.german} wie {other[1]}.",
    )


def came_home(random: Random) -> Pair:
    """When Anna came home, the kitchen was dark: the German simple past."""
    person_english, person_german, person = pick_subject(random)
    place, ort = pick(random, DIRECTIONS) if random() < 0.5 else pick(random, cities())[2:]
    subject, adjectives = _described(random)
    quality, eigenschaft = _quality(random, adjectives)
    return (
        f"when {person_english} came {place}, {subject[0]} {_WAS[subject[2]]} {quality}.",
        f"als {person_german} {ort} {_KAM[person]}, {_WAR[subject[2]]} {subject[1]} {eigenschaft}.",
    )


@cache
def _passive_verbs() -> list[tuple[Verb, str]]:
    """Verbs of doing with a thing as their plain object, with that kind of thing."""
    return [
        (verb, group)
        for verb in verbs()["object"]
        if verb.case == "accusative" and verb.progressive
        if not verb.preposition and not any(verb.reflexive)
        for group in verb.groups
        if group not in ("persons", "drinks")
    ]


def passive(random: Random) -> Pair:
    """The bridge was painted by Anna in 1987."""
    verb, group = pick(random, _passive_verbs())
    english, german, gender = pick(random, the_phrases(group, "nominative"))
    many = gender == "p"
    done = verb.english_participle
    by, von = "", ""
    if random() < 0.4:
        name, wer = pick(random, names("dative"))
        by, von = f" by {name}", f" von {wer}"
    kind = random()
    if kind < 0.6:
        time, zeit = pick(random, times()["past"]) if random() < 0.7 else ("", "")
        time, zeit = time and f" {time}", zeit and f" {zeit}"
        was, wurde = ("were", "wurden") if many else ("was", "wurde")
        return (
            f"{english} {was} {done}{by}{time}.",
            f"{german} {wurde}{zeit}{von} {verb.participle}.",
        )
    if kind < 0.8:
        be, wird = ("are", "werden") if many else ("is", "wird")
        return (
            f"{english} {be} being {done}{by}.",
            f"{german} {wird} gerade{von} {verb.participle}.",
        )
    time, zeit = pick(random, times()["future"])
    have, muss = ("have", "müssen") if many else ("has", "muss")
    return (
        f"{english} {have} to be {done}{by} {time}.",
        f"{german} {muss} {zeit}{von} {verb.participle} werden.",
    )
