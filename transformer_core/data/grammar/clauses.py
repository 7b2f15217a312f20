"""Clauses of both languages and their parts: noun phrases, subjects and objects.

Tables hold the agreement; words are drawn at random.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Literal, NamedTuple, TypeVar

from transformer_core.data.grammar.words import (
    ADJECTIVES,
    DIRECTIONS,
    FIRST_NAMES,
    NOUNS,
    OBJECT_PRONOUNS,
    PLACES,
    SURNAMES,
    THIRD,
    THIRD_PLURAL,
    Adjective,
    Form,
    Noun,
    Pair,
    Tense,
    Verb,
    cities,
    number_words,
    pairs,
    times,
    verbs,
)

Random = Callable[[], float]  # draws a number from 0 up to, not including, 1
Subject = tuple[str, str, int]  # English, German, grammatical person
Piece = tuple[str, str, str, str]
"""English; German pronouns; known information; new information. Each begins with a space or is
empty."""
T = TypeVar("T")
Case = Literal["nominative", "accusative", "dative"]
Endings = dict[tuple[str, str], str]  # by case and gender


def _endings(text: str) -> Endings:
    """Endings for masculine, feminine, neuter and plural in each case; - means none."""
    places = product(("nominative", "accusative", "dative"), "mfnp")
    endings = [ending.strip("-") for ending in text.replace("|", "").split()]
    return dict(zip(places, endings, strict=True))


_WEAK = _endings("e e e en | en e e en | en en en en")
_MIXED = _endings("er e es en | en e es en | en en en en")
_STRONG = _endings("er e es e | en e es e | em er em en")
_DER = _endings("der die das die | den die das die | dem der dem den")
_EIN = _endings("- e - e | en e - e | em er em en")
_NONE = _endings("- - - - | - - - - | - - - -")


class Determiner(NamedTuple):
    """A determiner with its endings and those of the adjectives after it."""

    english: str
    english_plural: str
    stem: str
    endings: Endings
    adjective: Endings


class Phrase(NamedTuple):
    """A noun phrase in one case; gender is p for a plural."""

    english: str
    german: str
    gender: str


def _invariant(english: str, german: str) -> Determiner:
    return Determiner(english, english, german, _NONE, _STRONG)


_THE = Determiner("the", "the", "", _DER, _WEAK)
_A = Determiner("a", "", "ein", _EIN, _MIXED)
_NO = Determiner("a", "", "kein", _EIN, _MIXED)
_EVERY = Determiner("every", "", "jed", _STRONG, _WEAK)
_DEFINITE = [
    Determiner("this", "these", "dies", _STRONG, _WEAK),
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


def _german_noun(noun: Noun, case: Case, plural: bool) -> str:
    if not plural:
        return noun.german if case == "nominative" else noun.oblique
    if case == "dative" and not noun.german_plural.endswith(("n", "s")):
        return noun.german_plural + "n"
    return noun.german_plural


def phrase(
    determiner: Determiner, adjective: Adjective | None, noun: Noun, case: Case, plural: bool
) -> Phrase:
    gender = "p" if plural else noun.gender
    stem = determiner.stem
    if determiner.english in ("many", "some") and case == "dative":
        stem += "n"
    german = [stem + determiner.endings[case, gender]]
    english = [determiner.english_plural if plural else determiner.english]
    if adjective is not None:
        german.append(adjective.stem + determiner.adjective[case, gender])
        english.append(adjective.english)
    german.append(_german_noun(noun, case, plural))
    english.append(noun.english_plural if plural else noun.english)
    if english[0] == "a" and english[1][0] in "aeiou":
        english[0] = "an"
    return Phrase(" ".join(filter(None, english)), " ".join(filter(None, german)), gender)


def _with_adjectives(
    group: str, determiner: Determiner, case: Case, plural: bool
) -> Iterator[Phrase]:
    """Yields phrases of all nouns, half of them without an adjective."""
    for noun in NOUNS[group]:
        plain = phrase(determiner, None, noun, case, plural)
        for adjective in ADJECTIVES[group]:
            yield plain
            yield phrase(determiner, adjective, noun, case, plural)


@cache
def phrases(kind: str, group: str, case: Case) -> list[Phrase]:
    """Noun phrases of a kind; repeated entries are drawn more often.

    ``the``: with the definite article. ``definite``: all that name something known, negated with
    nicht. ``indefinite``: singular with ein; drinks without an article. ``no``: the same with kein,
    but unchanged in English. ``counted``: plural with a number, many, some or no determiner, and
    singular with every.
    """
    drinks = group == "drinks"

    def each(determiner: Determiner, *plurals: bool) -> list[Phrase]:
        return [
            item for plural in plurals for item in _with_adjectives(group, determiner, case, plural)
        ]

    match kind:
        case "the":
            return each(_THE, False) if drinks else each(_THE, False, True)
        case "definite":
            others = [] if drinks else [*_DEFINITE * 2, *_OWNERS]
            found = [item for other in others for item in each(other, False, True)]
            return phrases("the", group, case) * 6 + found
        case "indefinite":
            return each(_PLURALS[0] if drinks else _A, False)
        case "no":
            return each(_NO._replace(english="") if drinks else _NO, False)
    if drinks:
        return phrases("indefinite", group, case)
    return each(_EVERY, False) + [item for other in _PLURALS for item in each(other, True)]


@cache
def names(case: Case) -> list[tuple[str, str]]:
    """Names of persons: first names, and surnames with Mr and Mrs."""
    mister = "Herr" if case == "nominative" else "Herrn"
    found = [(name, name) for name in FIRST_NAMES] * 3
    for surname in SURNAMES:
        found.append((f"Mr {surname}", f"{mister} {surname}"))
        found.append((f"Mrs {surname}", f"Frau {surname}"))
    return found


# By person of the subject, the object pronouns that would have to be reflexive after it.
_OWN_PRONOUNS = (("me", "us"), ("you",), (), ("me", "us"), ("them",))


def pick(random: Random, options: Sequence[T]) -> T:
    return options[int(random() * len(options))]


@cache
def subjects() -> list[list[Subject]]:
    """Subjects in three lists: names, pronouns, noun phrases."""
    people: list[Subject] = [(*name, THIRD) for name in names("nominative")]
    for first, second in zip(FIRST_NAMES, FIRST_NAMES[7:], strict=False):
        people.append((f"{first} and {second}", f"{first} und {second}", THIRD_PLURAL))
        people.append((f"{first} and I", f"{first} und ich", 3))
    nouns = phrases("definite", "persons", "nominative") * 2
    nouns += phrases("indefinite", "persons", "nominative")
    nouns += phrases("counted", "persons", "nominative")
    pronouns: list[Subject] = [
        (*pair, person) for pair, person in zip(pairs("pronouns"), (0, 1, 2, 2, 3, 4), strict=True)
    ]
    return [people, pronouns, [as_subject(each) for each in nouns]]


def as_subject(phrase: Phrase) -> Subject:
    return phrase.english, phrase.german, THIRD_PLURAL if phrase.gender == "p" else THIRD


def pick_subject(random: Random) -> Subject:
    """One or more persons, as a name, a pronoun or a noun phrase."""
    return pick(random, pick(random, subjects()))


def noun_object(
    random: Random, group: str, case: Case, preposition: str = "", negated: bool = False
) -> Piece:
    """A noun phrase as an object, with its negation if it is ``negated``."""
    kind = random()
    if kind < 0.5:
        english, german, _ = pick(random, phrases("definite", group, case))
        return _known(english, german, preposition, negated)
    if negated or kind < 0.75:
        english, german, _ = pick(random, phrases("no" if negated else "indefinite", group, case))
    else:
        english, german, _ = pick(random, phrases("counted", group, case))
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
    """An object of ``verb``, with its negation if it is ``negated``."""
    group = pick(random, verb.groups)
    if group == "persons":
        return person_object(random, person, verb.case, verb.preposition, negated)
    return noun_object(random, group, verb.case, verb.preposition, negated)


# Clauses

_TENSES: tuple[Tense, ...] = ("habit", "now", "past", "past", "future", "modal")
_KINDS = ("object",) * 6 + ("local",) * 2 + ("gift", "gift", "direction", "city", "time")


def complement(random: Random, person: int, negated: bool = False) -> tuple[Verb, Piece]:
    """A verb and its complement for a subject in ``person``, reflexive pronoun included."""
    kind = pick(random, _KINDS)
    verb = pick(random, verbs()[kind])
    nicht = " nicht" if negated else ""
    pronouns = known = ""
    match kind:
        case "object":
            english, pronouns, known, new = verb_object(random, verb, person, negated)
            if random() < 0.1:
                place = pick(random, PLACES)
                english = f"{english} {place[0]}"
                bare = new.removeprefix(" nicht")
                if verb.preposition and bare != new:
                    new = f" nicht {place[1]}{bare}"
                elif verb.preposition:
                    new = f" {place[1]}{new}"
                else:
                    new = f"{new} {place[1]}"
        case "gift":
            english, pronouns, known, new = person_object(random, person, "dative")
            gift = noun_object(random, pick(random, verb.groups), "accusative", "", negated)
            english, known = english + gift[0], known + gift[2]
            # The known gift comes before a new receiver, a new gift after.
            new = gift[3] + new if gift[2] else new + gift[3]
        case "time":
            english, new = "", nicht
        case "city":
            city = pick(random, cities())
            english, new = f" {city[2]}", f"{nicht} {city[3]}"
        case "direction":
            place = pick(random, DIRECTIONS)
            english, new = f" {place[0]}", f"{nicht} {place[1]}"
        case _:
            place = pick(random, PLACES) if random() < 0.6 else pick(random, cities())[:2]
            english, new = f" {place[0]}", f"{nicht} {place[1]}"
    return verb, (english, verb.reflexive[person] + pronouns, known, new)


class Clause:
    """A clause in both languages. Its methods give it in the word orders that sentences need."""

    def __init__(
        self,
        subject: Subject,
        form: Form,
        piece: Piece,
        time: Pair = ("", ""),
        adverb: str = "",
        negated: bool = False,
        time_first: bool = False,
    ) -> None:
        """``time_first`` puts the German time phrase before known information, not after it."""
        self.subject = subject
        self.form = form
        self.object, self.pronouns, self.known, self.new = piece
        self.time_first = time_first
        self.time = time
        self.en_time, self.de_time = (part and f" {part}" for part in time)
        self.adverb = adverb
        self.negated = negated

    def middle(self) -> str:
        """The German words between the parts of the verb, or before a verb at the end."""
        times = (self.de_time, self.known) if self.time_first else (self.known, self.de_time)
        return self.pronouns + "".join(times) + self.new

    def predicate(self) -> Pair:
        """The clause without its subject, verb first, as it follows "and"."""
        form = self.form
        if self.negated:
            english = f"{form.negation} {form.base}{self.object}{self.en_time}"
        else:
            english = f"{form.before}{self.adverb} {form.verb}{self.object}{self.en_time}"
        return english, f" {form.finite}{self.middle()}{form.bracket}"

    def main(self) -> Pair:
        """A main clause, subject first."""
        english, german = self.predicate()
        return self.subject[0] + english, self.subject[1] + german

    def after_a_clause(self) -> Pair:
        """A main clause after another clause: the German verb comes first."""
        return self.main()[0], self.inverted()

    def inverted(self) -> str:
        """The German clause with its verb first, as after a fronted phrase and in questions."""
        return f"{self.form.finite} {self.subject[1]}{self.middle()}{self.form.bracket}"

    def fronted(self) -> Pair:
        """A main clause, time first; the time must not be empty in either language."""
        en_time, de_time = self.time
        self.en_time = self.de_time = ""
        english, _ = self.main()
        return f"{en_time}, {english}", f"{de_time} {self.inverted()}"

    def question(self) -> Pair:
        """A yes-or-no question, without the mark."""
        form = self.form
        english = f"{form.question} {self.subject[0]} {form.base}{self.object}{self.en_time}"
        return english, self.inverted()

    def subclause(self) -> Pair:
        """The clause after a conjunction: in German, the verb comes last."""
        return self.main()[0], f"{self.subject[1]}{self.middle()}{self.form.final}"

    def relative(self, pronoun: str) -> Pair:
        """A relative clause whose subject is the relative pronoun."""
        return f"who{self.predicate()[0]}", f"{pronoun}{self.middle()}{self.form.final}"


def pick_tense(random: Random) -> Tense:
    return pick(random, _TENSES)


def make_clause(
    random: Random,
    tense: Tense,
    subject: Subject | None = None,
    *,
    negatable: bool = True,
    timed: bool | None = None,
) -> Clause:
    """A clause in ``tense``; ``timed`` says whether it has a time phrase (None: perhaps)."""
    subject = subject or pick_subject(random)
    person = subject[2]
    negated = negatable and random() < 0.15
    verb, piece = complement(random, person, negated)
    if tense == "now" and not verb.progressive:
        tense = "habit"
    form = pick(random, verb.forms[tense][person])
    time_first = tense in ("habit", "now")
    if timed is None:
        if tense == "now":
            # The progressive shows in German as an adverb only.
            timed = True
        elif tense == "habit" and negated:
            # "Not every day" or "every day not": the two languages would differ.
            timed = False
        else:
            timed = random() < 0.6
            if not (timed or negated) and tense in ("habit", "past") and random() < 0.4:
                adverb, german = pick(random, pairs("adverbs"))
                return Clause(subject, form, piece, ("", german), f" {adverb}")
    time = pick(random, times()[tense]) if timed else ("", "")
    return Clause(subject, form, piece, time, negated=negated, time_first=time_first)
