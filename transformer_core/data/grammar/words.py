"""The words of the generated corpus, read from words.yaml: nouns, adjectives, verbs, names, numbers.

Conjugates each verb once, into all the forms that clauses need.
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

Pair = tuple[str, str]  # English and German
Gender = Literal["m", "f", "n"]
Tense = Literal["habit", "now", "past", "future", "modal"]
PERSONS = range(5)  # I, you (du), he or she, we, they
THIRD, THIRD_PLURAL = 2, 4

_FILE = Path(__file__).parent / "words.yaml"
_WORDS: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))


@cache
def pairs(name: str) -> list[Any]:
    """A table of ``english | german`` from words.yaml; - means empty."""
    return _lines(_WORDS[name])


def words(name: str) -> list[str]:
    """A list of single words from words.yaml."""
    return _WORDS[name].split()


def _lines(text: str) -> list[tuple[str, ...]]:
    return [
        tuple("" if part.strip() == "-" else part.strip() for part in line.split("|"))
        for line in text.strip().splitlines()
    ]


def numbers(name: Literal["numbers", "tens"]) -> list[Pair]:
    """Words for 0 to 19, or for 20, 30, ... 90."""
    both = _WORDS[name]
    return list(zip(both["english"].split(), both["german"].split(), strict=True))


def by_person(text: str) -> list[str]:
    """Words in the order of persons; _ means a space within a word."""
    return [word.replace("_", " ") for word in text.split()]


CONJUGATED = {
    name: [by_person(part) for part in text.split("|")]
    for name, text in _WORDS["conjugated"].items()
}
"""Auxiliary verbs of both languages by person."""
REFLEXIVE = {
    name: [f" {word}" for word in text.split()] for name, text in _WORDS["reflexive"].items()
}
OBJECT_PRONOUNS = {case: _lines(text) for case, text in _WORDS["object_pronouns"].items()}

FIRST_NAMES, SURNAMES = words("first_names"), words("surnames")
CITIES: list[Pair] = [*((name, name) for name in words("same_cities")), *pairs("other_cities")]


@cache
def cities() -> list[tuple[str, str, str, str]]:
    """Local and directional phrases of cities: English, German, English, German."""
    return [(f"in {name}", f"in {ort}", f"to {name}", f"nach {ort}") for name, ort in CITIES]


PLACES: list[Pair] = pairs("places")  # phrases for where something happens
DIRECTIONS: list[Pair] = pairs("directions")  # phrases for where somebody goes


class Noun(NamedTuple):
    """A noun; ``oblique`` is its German accusative and dative singular."""

    english: str
    english_plural: str
    gender: Gender
    german: str
    german_plural: str
    oblique: str


def _with_s(english: str, endings: tuple[str, ...] = ("s", "x", "ch", "sh")) -> str:
    if english.endswith(endings):
        return english + "es"
    if english.endswith("y") and english[-2] not in "aeiou":
        return english[:-1] + "ies"
    return english + "s"


def third_person(english: str) -> str:
    """The third person singular of an English infinitive; particles may follow the verb."""
    head, *rest = english.split(" ")
    return " ".join([_with_s(head, ("s", "x", "ch", "sh", "o")), *rest])


def _noun(english: str, german: str) -> Noun:
    gender, singular, plural, *oblique = german.split()
    several = _WORDS["irregular_plurals"].get(english) or _with_s(english)
    return Noun(english, several, gender, singular, plural, (*oblique, singular)[0])  # type: ignore[arg-type]


class Adjective(NamedTuple):
    """An adjective; ``stem`` takes the German endings, comparatives are empty where unusual."""

    english: str
    stem: str
    german: str
    english_more: str
    german_more: str


def _adjective(english: str, german: str) -> Adjective:
    base, _, more = english.partition(" ")
    grund, _, mehr = german.partition(" ")
    return Adjective(base, _WORDS["stems"].get(grund, grund), grund, more, mehr)


NOUNS = {group: [_noun(*line) for line in _lines(text)] for group, text in _WORDS["nouns"].items()}
"""Nouns by the group that verbs take. Drinks have no plural."""
ADJECTIVES = {
    group: [_adjective(*line) for line in _lines(text)]
    for group, text in _WORDS["adjectives"].items()
}
"""Adjectives by the group of nouns they go with."""


class Form(NamedTuple):
    """A verb in one tense and person. Optional pieces begin with a space or are empty.

    English: subject + before + verb; negated subject + negation + base; question + subject + base.
    German: subject + finite ... + bracket in a main clause, final at the end of a subclause.
    """

    before: str
    verb: str
    negation: str
    question: str
    base: str
    finite: str
    bracket: str
    final: str


class Verb(NamedTuple):
    """A verb with its forms and the kind of object it takes."""

    english: str
    to_infinitive: str
    forms: dict[Tense, list[list[Form]]]  # by tense and person; the modal tense has several forms
    groups: tuple[str, ...]  # groups of nouns that it takes as its object
    case: Literal["accusative", "dative"]
    preposition: str
    reflexive: list[str]
    """German reflexive pronoun by person, each with a space before it; empty strings if none."""
    progressive: bool
    participle: str
    english_participle: str

    @property
    def plain(self) -> bool:
        """Whether it takes an accusative without a preposition and is not reflexive."""
        return self.case == "accusative" and not self.preposition and not any(self.reflexive)


def _with_be(person: int, rest: str) -> tuple[str, str, str, str, str]:
    be = CONJUGATED["be"][0][person]
    return f" {be}", rest, f" {be} not", be, rest


def _with_do(verb: str, base: str, person: int) -> tuple[str, str, str, str, str]:
    do = CONJUGATED["do"][0][person]
    return "", verb, f" {do} not", do, base


def _with_infinitive(auxiliary: str, infinitive: str, person: int) -> tuple[str, str, str]:
    finite = CONJUGATED[auxiliary][1][person]
    return finite, f" {infinitive}", f" {infinitive} {finite}"


def _modals(base: str, infinitive: str, person: int) -> list[Form]:
    found = []
    for modal, negation in (("can", "cannot"), ("should", "should not")):
        english = f" {modal}", base, f" {negation}", modal, base
        found.append(Form(*english, *_with_infinitive(modal, infinitive, person)))
    for modal in ("have", "want"):
        inflected = CONJUGATED[f"{modal}_to"][0][person]
        english = _with_do(f"{inflected} to {base}", f"{modal} to {base}", person)
        found.append(Form(*english, *_with_infinitive(f"{modal}_to", infinitive, person)))
    allowed = _with_be(person, f"allowed to {base}")
    return [*found, Form(*allowed, *_with_infinitive("may", infinitive, person))]


def _verb(english_part: str, german_part: str, object_part: str) -> Verb:
    base, ing, past, participle = (part.replace("_", " ") for part in english_part.split())
    german = german_part.split()
    reflexive = REFLEXIVE[german.pop(0)] if german[0].startswith("sich") else [""] * 5
    lemma, du, er, german_participle, *ist = german
    prefix, _, stem = lemma.rpartition("-")
    infinitive = prefix + stem
    ich = stem.removesuffix("n") if stem.endswith("en") else stem.removesuffix("n") + "e"
    present = (ich, du, er, stem, stem)
    bracket = f" {prefix}" if prefix else ""
    forms: dict[Tense, list[list[Form]]] = {
        tense: [] for tense in ("habit", "now", "past", "future", "modal")
    }
    for person in PERSONS:
        finite = present[person], bracket, f" {prefix}{present[person]}"
        inflected = third_person(base) if person == THIRD else base
        habit = Form(*_with_do(inflected, base, person), *finite)
        forms["habit"].append([habit])
        forms["now"].append([habit if ing == "-" else Form(*_with_be(person, ing), *finite)])
        did = "", past, " did not", "did", base
        perfect = _with_infinitive("be" if ist else "have", german_participle, person)
        forms["past"].append([Form(*did, *perfect)])
        will = " will", base, " will not", "will", base
        forms["future"].append([Form(*will, *_with_infinitive("will", infinitive, person))])
        forms["modal"].append(_modals(base, infinitive, person))
    kind, *groups = object_part.split()
    preposition, _, case = kind.rpartition("+")
    return Verb(
        base,
        f"{prefix}zu{stem}" if prefix else f"zu {stem}",
        forms,
        tuple(groups) or (kind,),
        "dative" if case == "dat" else "accusative",
        preposition and f" {preposition}",
        reflexive,
        ing != "-",
        german_participle,
        participle,
    )


@cache
def verbs() -> dict[str, list[Verb]]:
    """All verbs by complement: an object, a gift, or a local, direction, city or time phrase."""
    found: dict[str, list[Verb]] = {}
    for line in _lines(_WORDS["verbs"]):
        kind = line[2].split()[0]
        key = "object" if kind.endswith(("acc", "dat")) else kind
        found.setdefault(key, []).append(_verb(*line))
    return found


@cache
def verbs_of_doing() -> list[Verb]:
    """Verbs that somebody can plan, promise or be asked to do."""
    return [verb for verb in verbs()["object"] if verb.progressive]


_SMALL, _TENS = numbers("numbers"), numbers("tens")


def english_number(number: int) -> str:
    """0 to 999 in English words, the British way (with and)."""
    if number >= 100:
        rest = f" and {english_number(number % 100)}" if number % 100 else ""
        return f"{_SMALL[number // 100][0]} hundred{rest}"
    if number < 20:
        return _SMALL[number][0]
    unit = f"-{_SMALL[number % 10][0]}" if number % 10 else ""
    return _TENS[number // 10 - 2][0] + unit


def german_number(number: int) -> str:
    """0 to 999 in German words: the unit before the ten (einundzwanzig)."""
    if number >= 100:
        hundreds = "ein" if number < 200 else _SMALL[number // 100][1]
        return f"{hundreds}hundert{german_number(number % 100) if number % 100 else ''}"
    if number < 20:
        return _SMALL[number][1]
    unit = number % 10
    before = f"{'ein' if unit == 1 else _SMALL[unit][1]}und" if unit else ""
    return before + _TENS[number // 10 - 2][1]


def number_words(number: int) -> Pair:
    return english_number(number), german_number(number)


@cache
def counts() -> list[Pair]:
    """Numerals that can count something, mostly below one hundred.

    Excludes those that end in one, which would need the inflected forms of ein.
    """
    low = [*range(2, 100)] * 5
    return [number_words(n) for n in [*low, *(n for n in range(100, 1000) if n % 100 != 1)]]


def grouped(number: int) -> Pair:
    """Digits in groups of three: 12,500 is 12.500."""
    english = f"{number:,}"
    return english, english.replace(",", ".")


def decimal(hundredths: int) -> Pair:
    """Two decimal places: 3.50 is 3,50."""
    english = f"{hundredths // 100}.{hundredths % 100:02d}"
    return english, english.replace(".", ",")


@cache
def clock_times() -> list[Pair]:
    """Times of day with their prepositions: half past eight is halb neun."""
    found = []
    for hour in range(1, 13):
        english, german = number_words(hour)
        next_english, next_german = number_words(hour % 12 + 1)
        found += [
            (f"at {english} o'clock", f"um {'ein' if hour == 1 else german} Uhr"),
            (f"at half past {english}", f"um halb {next_german}"),
            (f"at a quarter past {english}", f"um Viertel nach {german}"),
            (f"at a quarter to {next_english}", f"um Viertel vor {next_german}"),
            (f"at ten past {english}", f"um zehn nach {german}"),
        ]
    return found


@cache
def dates() -> list[Pair]:
    """Days of the year: on 3 May is am 3. Mai."""
    return [
        (f"on {day} {english}", f"am {day}. {german}")
        for english, german in pairs("months")
        for day in range(1, 29)
    ]


@cache
def times() -> dict[Tense, list[Pair]]:
    """Time phrases by tense; repeated entries are drawn more often."""
    weekdays = pairs("weekdays")
    on_weekday = [(f"on {english}", f"am {german}") for english, german in weekdays]
    spans = [
        (f"{english} {unit}", f"{german} {dative}")
        for english, german in map(number_words, range(2, 7))
        for unit, _, dative in pairs("units")
    ]
    past = [
        *pairs("past") * 4,
        *((f"{english} ago", f"vor {german}") for english, german in spans),
        *on_weekday * 2,
        *[(f"in {english}", f"im {german}") for english, german in pairs("months")] * 2,
        *dates()[::7],
        *((f"in {year}", f"{year}") for year in range(1950, 2026, 4)),
    ]
    future = [
        *pairs("future") * 4,
        *((f"in {english}", f"in {german}") for english, german in spans),
        *on_weekday * 2,
        *clock_times(),
        *dates()[3::9],
    ]
    habit = [*pairs("habit"), *((f"on {day}s", f"{tag.lower()}s") for day, tag in weekdays)]
    return {"habit": habit, "now": pairs("now"), "past": past, "future": future, "modal": future}
