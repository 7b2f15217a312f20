"""Sentence patterns: each draws its words and returns an English-German pair.

Sentences begin with a small letter, unless the first word is always capitalised.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from transformer_core.data.grammar.clauses import (
    Clause,
    Random,
    Subject,
    as_subject,
    make_clause,
    names,
    phrases,
    pick,
    pick_subject,
    pick_tense,
    verb_object,
)
from transformer_core.data.grammar.words import (
    ADJECTIVES,
    CITIES,
    CONJUGATED,
    DIRECTIONS,
    NOUNS,
    PLACES,
    THIRD,
    THIRD_PLURAL,
    Adjective,
    Pair,
    Tense,
    Verb,
    by_person,
    cities,
    clock_times,
    counts,
    dates,
    decimal,
    grouped,
    number_words,
    pairs,
    times,
    verbs,
    verbs_of_doing,
)

Pattern = Callable[[Random], Pair]
NOTHING = "", ""
PATTERNS: list[Pattern] = []  # every pattern, repeated by its weight


def pattern(weight: int) -> Callable[[Pattern], Pattern]:
    """Registers a function as one of the patterns."""

    def register(function: Pattern) -> Pattern:
        PATTERNS.extend([function] * weight)
        return function

    return register


def say(templates: str, **parts: Sequence[Any]) -> Pair:
    """Fills ``english | german``, or one template for both, with the English and German of each
    part."""
    english, _, german = templates.partition(" | ")
    return (
        english.format(**{name: part[0] for name, part in parts.items()}),
        (german or english).format(**{name: part[1] for name, part in parts.items()}),
    )


def agree(verb: str, subject: Subject) -> Pair:
    """A verb of words.yaml in the person of a subject."""
    english, german = CONJUGATED[verb]
    return english[subject[2]], german[subject[2]]


def capital(pair: Pair) -> Pair:
    """Capitalises the first letters."""
    return pair[0][0].upper() + pair[0][1:], pair[1][0].upper() + pair[1][1:]


# One clause


@pattern(14)
def statement(random: Random) -> Pair:
    """Anna bought the book yesterday."""
    return say("{all}.", all=make_clause(random, pick_tense(random)).main())


@pattern(10)
def fronted(random: Random) -> Pair:
    """Yesterday, Anna bought the book: the German verb stays second."""
    tense: Tense = pick(random, ("habit", "past", "past", "future", "modal"))
    return say("{all}.", all=make_clause(random, tense, timed=True).fronted())


@pattern(6)
def question(random: Random) -> Pair:
    """Did Anna buy the book?"""
    tense = pick_tense(random)
    timed = random() < 0.4 if tense != "now" else None
    return say("{all}?", all=make_clause(random, tense, negatable=False, timed=timed).question())


@pattern(3)
def open_question(random: Random) -> Pair:
    """When did Anna buy the book?"""
    tense: Tense = pick(random, ("habit", "past", "future", "modal"))
    asked = make_clause(random, tense, negatable=False, timed=False).question()
    return say("{when} {asked}?", when=pick(random, pairs("question_words")), asked=asked)


@pattern(2)
def who_question(random: Random) -> Pair:
    """Who bought the book?"""
    tense, who = pick_tense(random), ("who", "wer", THIRD)
    return say("{all}?", all=make_clause(random, tense, who, negatable=False, timed=True).main())


# Several clauses


def _circumstance(random: Random, tense: Tense) -> Pair:
    if tense in ("now", "future") and random() < 0.2:
        return pick(random, pairs("weather"))
    return make_clause(random, tense).subclause()


@pattern(6)
def reason(random: Random) -> Pair:
    """Anna stayed at home because it was raining: the German verb comes last."""
    tense = pick_tense(random)
    main = make_clause(random, tense).main()
    because = pick(random, pairs("reasons"))
    comma = ("," if because[0] == "although" else "", ",")
    why = _circumstance(random, tense)
    return say("{main}{comma} {because} {why}.", main=main, comma=comma, because=because, why=why)


@pattern(4)
def reason_first(random: Random) -> Pair:
    """Because it is raining, Anna stays at home: the German verb follows the comma."""
    tense = pick_tense(random)
    main = make_clause(random, tense)
    because = pick(random, pairs("reasons"))
    why = _circumstance(random, tense)
    return say("{because} {why}, {main}.", because=because, why=why, main=main.after_a_clause())


@pattern(4)
def condition(random: Random) -> Pair:
    """If Anna buys the car tomorrow, Paul will sell the bicycle."""
    if random() < 0.3:
        event = pick(random, pairs("weather"))
    else:
        event = make_clause(random, "habit", timed=False).subclause()
    main = make_clause(random, pick(random, ("future", "modal"))).after_a_clause()
    return say("if {event}, {main}. | wenn {event}, {main}.", event=event, main=main)


@pattern(3)
def before(random: Random) -> Pair:
    """Before Anna went home, she had called; or the other way round."""
    first = make_clause(random, "past", negatable=False, timed=False)
    second = make_clause(random, "past", negatable=False, timed=False).subclause()
    if random() < 0.5:
        return say("{a} before {b}. | {a}, bevor {b}.", a=first.main(), b=second)
    return say("before {b}, {a}. | bevor {b}, {a}.", a=first.after_a_clause(), b=second)


@pattern(3)
def meanwhile(random: Random) -> Pair:
    """While Anna is sleeping, Paul is working."""
    first = make_clause(random, "now", negatable=False, timed=False).subclause()
    main = make_clause(random, "now", negatable=False, timed=False).after_a_clause()
    return say("while {a}, {main}. | während {a}, {main}.", a=first, main=main)


@pattern(6)
def coordination(random: Random) -> Pair:
    """Two main clauses."""
    tense = pick_tense(random)
    first = make_clause(random, tense).main()
    second = make_clause(random, tense if random() < 0.7 else pick_tense(random)).main()
    if random() < 0.5:
        return say("{a}, and {b}. | {a} und {b}.", a=first, b=second)
    return say("{a}, but {b}. | {a}, aber {b}.", a=first, b=second)


@pattern(4)
def two_predicates(random: Random) -> Pair:
    """Anna opens the window and reads a book."""
    tense = pick_tense(random)
    first = make_clause(random, tense, negatable=False)
    second = make_clause(random, tense, first.subject, negatable=False, timed=False)
    return say("{a} and{b}. | {a} und{b}.", a=first.main(), b=second.predicate())


def _matrix(random: Random, table: str, subject: Subject) -> Pair:
    """Subject and verb of a main clause, from a table of words.yaml."""
    english, german = map(by_person, pick(random, pairs(table)))
    verb = english[subject[2] == THIRD], german[subject[2]]
    return say("{who} {verb}", who=subject, verb=verb)


@pattern(6)
def that_clause(random: Random) -> Pair:
    """Anna thinks that Paul bought the car."""
    main = _matrix(random, "that", pick_subject(random))
    what = make_clause(random, pick_tense(random)).subclause()
    return say("{main} that {what}. | {main}, dass {what}.", main=main, what=what)


@pattern(3)
def whether_clause(random: Random) -> Pair:
    """Anna does not know whether Paul bought the car."""
    main = _matrix(random, "whether", pick_subject(random))
    what = make_clause(random, pick_tense(random), negatable=False).subclause()
    return say("{main} whether {what}. | {main}, ob {what}.", main=main, what=what)


def _infinitive(random: Random, person: int) -> Pair:
    """An infinitive with its object: English after to, German with zu at the end."""
    verb = pick(random, verbs_of_doing())
    english, *german = verb_object(random, verb, person)
    return (
        f"to {verb.english}{english}",
        f"{verb.reflexive[person]}{''.join(german)} {verb.to_infinitive}",
    )


@pattern(4)
def infinitive(random: Random) -> Pair:
    """Anna tries to repair the car."""
    subject = pick_subject(random)
    main = _matrix(random, "to", subject)
    return say("{main} {to}. | {main},{to}.", main=main, to=_infinitive(random, subject[2]))


@pattern(4)
def purpose(random: Random) -> Pair:
    """Anna goes to the city to buy a book: um ... zu."""
    subject = pick_subject(random)
    tense = pick_tense(random)
    form = pick(random, pick(random, verbs()["direction"]).forms[tense][subject[2]])
    place, ort = pick(random, DIRECTIONS)
    time = pick(random, times()[tense]) if random() < 0.5 or tense == "now" else NOTHING
    main = Clause(subject, form, (f" {place}", "", "", f" {ort}"), time).main()
    return say("{main} {to}. | {main}, um{to}.", main=main, to=_infinitive(random, subject[2]))


@pattern(6)
def relative_subject(random: Random) -> Pair:
    """The man who bought the car yesterday works in Berlin."""
    found = pick(random, phrases("the", "persons", "nominative"))
    subject = as_subject(found)
    clause = make_clause(random, pick_tense(random), subject)
    who = clause.relative({"m": "der", "f": "die", "n": "das", "p": "die"}[found.gender])
    main = make_clause(random, pick_tense(random), subject).predicate()
    return say("{it} {who}{main}. | {it}, {who},{main}.", it=subject, who=who, main=main)


@cache
def _verbs_by_group() -> list[tuple[str, list[Verb]]]:
    """Verbs with a plain object, by a group of nouns that at least two of them take."""
    found: dict[str, list[Verb]] = {}
    for verb in verbs()["object"]:
        if verb.plain:
            for group in verb.groups:
                found.setdefault(group, []).append(verb)
    return [(group, members) for group, members in found.items() if len(members) > 1]


@pattern(5)
def relative_object(random: Random) -> Pair:
    """Anna is reading the book that Paul bought: a relative pronoun in the accusative."""
    group, candidates = pick(random, _verbs_by_group())
    english, german, gender = pick(random, phrases("the", group, "accusative"))
    subject = pick_subject(random)
    tense: Tense = pick(random, ("habit", "past", "future", "modal"))
    form = pick(random, pick(random, candidates).forms[tense][subject[2]])
    main = Clause(subject, form, (f" {english}", "", "", f" {german}")).main()
    other = pick_subject(random)
    past: Tense = pick(random, ("past", "past", "modal"))
    form = pick(random, pick(random, candidates).forms[past][other[2]])
    time = pick(random, times()[past]) if random() < 0.5 else NOTHING
    inner = Clause(other, form, ("", "", "", ""), time).subclause()
    that = "whom" if group == "persons" else "that"
    den = {"m": "den", "f": "die", "n": "das", "p": "die"}[gender]
    return say(
        "{main} {that} {inner}. | {main}, {that} {inner}.", main=main, that=(that, den), inner=inner
    )


@pattern(2)
def relative_reason(random: Random) -> Pair:
    """Long sentences: a relative clause, a reason and a second clause."""
    start, beginn = relative_subject(random)
    tense = pick_tense(random)
    why = make_clause(random, tense).subclause()
    other = make_clause(random, tense).main()
    return say(
        "{start} because {why}, but {other}. | {start}, weil {why}, aber {other}.",
        start=(start[:-1], beginn[:-1]), why=why, other=other,
    )  # fmt: skip


@pattern(3)
def request(random: Random) -> Pair:
    """Please open the window! In German the polite form."""
    verb = pick(random, verbs_of_doing())
    english, *german = verb_object(random, verb, 1)
    form = verb.forms["habit"][THIRD_PLURAL][0]
    reflexive = verb.reflexive[THIRD_PLURAL]
    return (
        f"please {verb.english}{english}!",
        f"bitte {form.finite} Sie{reflexive}{''.join(german)}{form.bracket}!",
    )


@pattern(4)
def speech(random: Random) -> Pair:
    """“I am reading a book,” says Anna: quotation marks of each language."""
    speaker = pick_subject(random)
    while speaker[2] != THIRD or speaker[0] in ("he", "she"):
        speaker = pick_subject(random)
    asked = random() < 0.3
    first: Subject = ("you", "du", 1) if asked else ("I", "ich", 0)
    clause = make_clause(
        random, pick_tense(random), first, negatable=not asked, timed=asked or None
    )
    said = capital(clause.question() if asked else clause.main())
    if asked:
        return say("“{said}?” asks {who}. | „{said}?“, fragt {who}.", said=said, who=speaker)
    return say("“{said},” says {who}. | „{said}“, sagt {who}.", said=said, who=speaker)


# Qualities, and what is done to things

_THINGS = ("writings", "goods", "machines", "food", "drinks", "buildings", "animals")


def _thing(random: Random, group: str) -> Subject:
    return as_subject(pick(random, phrases("definite", group, "nominative")))


def _described(random: Random) -> tuple[Subject, list[Adjective]]:
    """Somebody or something, and the adjectives that can be said of it."""
    if random() < 0.4:
        return pick_subject(random), ADJECTIVES["persons"]
    group = pick(random, _THINGS)
    return _thing(random, group), ADJECTIVES[group]


def _quality(random: Random, adjectives: list[Adjective]) -> Pair:
    """One or two adjectives with a degree."""
    first, second = pick(random, adjectives), pick(random, adjectives)
    degree = pick(random, pairs("degrees"))
    very = degree[0] and f"{degree[0]} ", degree[1] and f"{degree[1]} "
    parts = {"very": very, "a": (first.english, first.german), "b": (second.english, second.german)}
    if first is second or random() < 0.6:
        return say("{very}{a}", **parts)
    if degree[0] in ("not", "no longer"):
        return say("{a} but {very}{b} | {a}, aber {very}{b}", **parts)
    return say("{very}{a} and {b} | {very}{a} und {b}", **parts)


@pattern(5)
def description(random: Random) -> Pair:
    """The house is very old and expensive."""
    subject, adjectives = _described(random)
    quality = _quality(random, adjectives)
    be = agree("was" if random() < 0.3 else "be", subject)
    return say("{it} {be} {so}.", it=subject, be=be, so=quality)


@pattern(3)
def comparison(random: Random) -> Pair:
    """The house is older than the church, or as old as it."""
    group = pick(random, (*_THINGS, "persons"))
    other: Pair | Subject
    if group == "persons":
        subject, other = pick_subject(random), pick(random, names("nominative"))
    else:
        subject, other = _thing(random, group), _thing(random, group)
    adjective = pick(random, [item for item in ADJECTIVES[group] if item.german_more])
    parts = {"it": subject, "be": agree("be", subject), "other": other}
    if random() < 0.7:
        more = adjective.english_more, adjective.german_more
        return say(
            "{it} {be} {more} than {other}. | {it} {be} {more} als {other}.", more=more, **parts
        )
    negation = ("not ", "nicht ") if random() < 0.4 else NOTHING
    return say(
        "{it} {be} {no}as {old} as {other}. | {it} {be} {no}so {old} wie {other}.",
        no=negation, old=(adjective.english, adjective.german), **parts,
    )  # fmt: skip


@pattern(2)
def came_home(random: Random) -> Pair:
    """When Anna came home, the kitchen was dark: the German simple past."""
    who = pick_subject(random)
    place = pick(random, DIRECTIONS) if random() < 0.5 else pick(random, cities())[2:]
    subject, adjectives = _described(random)
    quality = _quality(random, adjectives)
    return say(
        "when {who} {came} {place}, {it} {was} {so}. | als {who} {place} {came}, {was} {it} {so}.",
        who=who, came=agree("came", who), place=place, it=subject,
        was=agree("was", subject), so=quality,
    )  # fmt: skip


@cache
def _passive_verbs() -> list[tuple[Verb, str]]:
    """Verbs of doing with a thing as their plain object, with that kind of thing."""
    return [
        (verb, group)
        for verb in verbs_of_doing()
        if verb.plain
        for group in verb.groups
        if group not in ("persons", "drinks")
    ]


@pattern(4)
def passive(random: Random) -> Pair:
    """The bridge was painted by Anna in 1987."""
    verb, group = pick(random, _passive_verbs())
    found = pick(random, phrases("the", group, "nominative"))
    many = found.gender == "p"
    by = NOTHING
    if random() < 0.4:
        name, wer = pick(random, names("dative"))
        by = f" by {name}", f" von {wer}"
    parts = {"it": found[:2], "by": by, "done": (verb.english_participle, verb.participle)}
    kind = random()
    if kind < 0.6:
        time = pick(random, times()["past"]) if random() < 0.7 else NOTHING
        when = time[0] and f" {time[0]}", time[1] and f" {time[1]}"
        was = ("were", "wurden") if many else ("was", "wurde")
        both = "{it} {was} {done}{by}{when}. | {it} {was}{when}{by} {done}."
        return say(both, was=was, when=when, **parts)
    if kind < 0.8:
        be = ("are", "werden") if many else ("is", "wird")
        return say("{it} {be} being {done}{by}. | {it} {be} gerade{by} {done}.", be=be, **parts)
    time = pick(random, times()["future"])
    must = ("have", "müssen") if many else ("has", "muss")
    both = "{it} {must} to be {done}{by} {time}. | {it} {must} {time}{by} {done} werden."
    return say(both, must=must, time=time, **parts)


# Numbers


def _below(random: Random, low: int, high: int) -> int:
    """A whole number from ``low`` up to, not including, ``high``."""
    return low + int(random() * (high - low))


def _amount(random: Random, group: str) -> Pair:
    """A plausible price for something of that group, in euros."""
    if group == "buildings":
        return grouped(_below(random, 80, 3_000) * 1_000)
    if group == "food":
        return decimal(_below(random, 20, 399) * 5)
    if group == "machines" and random() < 0.5:
        return grouped(_below(random, 10, 500) * 100)
    return pick(random, counts())


@pattern(4)
def price(random: Random) -> Pair:
    """The car costs 12,500 euros."""
    group = pick(random, ("goods", "machines", "writings", "food", "buildings"))
    found = pick(random, phrases("definite", group, "nominative"))
    parts = {"it": found[:2], "amount": _amount(random, group)}
    many = found.gender == "p"
    if random() < 0.3:
        has = ("", "haben" if many else "hat")
        return say(
            "{it} cost {amount} euros. | {it} {has} {amount} Euro gekostet.", has=has, **parts
        )
    costs = ("cost", "kosten") if many else ("costs", "kostet")
    each = (" each", "je ") if many and random() < 0.5 else NOTHING
    now = ("now ", "jetzt ") if random() < 0.3 else NOTHING
    both = "{it} {now}{costs} {amount} euros{each}. | {it} {costs} {now}{each}{amount} Euro."
    return say(both, costs=costs, each=each, now=now, **parts)


@pattern(1)
def age(random: Random) -> Pair:
    """Anna is twenty-one years old."""
    who = pick_subject(random)
    number = number_words(_below(random, 2, 100))
    both = "{who} {be} {number} years old. | {who} {be} {number} Jahre alt."
    return say(both, who=who, be=agree("be", who), number=number)


@pattern(1)
def birth(random: Random) -> Pair:
    """Anna was born in Berlin on 3 May 1987."""
    who = pick_subject(random)
    day, year = pick(random, dates()), str(_below(random, 1900, 2021))
    city = pick(random, cities())[:2]
    return say(
        "{who} {was} born {city} {day} {year}. | {who} {was} {day} {year} {city} geboren.",
        who=who, was=agree("was_born", who), city=city, day=day, year=(year, year),
    )  # fmt: skip


def _two_cities(random: Random) -> dict[str, Pair]:
    start, end = int(random() * len(CITIES)), int(random() * (len(CITIES) - 1))
    return {"start": CITIES[start], "end": CITIES[end + (end >= start)]}


@pattern(1)
def distance(random: Random) -> Pair:
    """It is 585 kilometres from Berlin to Munich."""
    between = _two_cities(random)
    return say(
        "it is {number} kilometres from {start} to {end}. | "
        "von {start} nach {end} sind es {number} Kilometer.",
        number=grouped(_below(random, 80, 9_000)), **between,
    )  # fmt: skip


@pattern(2)
def duration(random: Random) -> Pair:
    """Anna has been living in Berlin for six years: the present tense in German."""
    number = number_words(_below(random, 2, 13))
    if random() < 0.4:
        return say(
            "the journey from {start} to {end} takes {number} hours. | "
            "die Reise von {start} nach {end} dauert {number} Stunden.",
            number=number, **_two_cities(random),
        )  # fmt: skip
    who = pick_subject(random)
    city = pick(random, cities())[:2]
    unit, accusative, dative = pick(random, pairs("units"))
    parts = {"who": who, "city": city, "number": number}
    if random() < 0.6:
        return say(
            "{who} {live} been living {city} for {number} {unit}. | "
            "{who} {live} seit {number} {unit} {city}.",
            live=agree("have_been_living", who), unit=(unit, dative), **parts,
        )  # fmt: skip
    return say(
        "{who} worked {city} for {number} {unit}. | "
        "{who} {have} {number} {unit} lang {city} gearbeitet.",
        have=agree("have", who), unit=(unit, accusative), **parts,
    )  # fmt: skip


@pattern(1)
def inhabitants(random: Random) -> Pair:
    """About 350,000 people live in Bern: the place comes first in German."""
    city = pick(random, cities())[:2]
    number = grouped(_below(random, 90, 9_000) * 1_000)
    both = "about {number} people live {city}. | {city} leben etwa {number} Menschen."
    return say(both, number=number, city=city)


@pattern(2)
def share(random: Random) -> Pair:
    """27.5 per cent of the teachers work in Berlin."""
    noun = pick(random, NOUNS["persons"])
    city = pick(random, cities())[:2]
    live = pick(random, (("live", "leben"), ("work", "arbeiten"), ("sleep", "schlafen")))
    number = f"{_below(random, 2, 99)}.{_below(random, 1, 10)}"
    if random() < 0.5:
        number = str(_below(random, 2, 99))
    return say(
        "{number} per cent of the {nouns} {live} {city}. | "
        "{number} Prozent der {nouns} {live} {city}.",
        number=(number, number.replace(".", ",")), live=live, city=city,
        nouns=(noun.english_plural, noun.german_plural),
    )  # fmt: skip


@pattern(3)
def stock(random: Random) -> Pair:
    """There are twenty-one books on the table; Anna has three hundred books."""
    number = pick(random, counts())
    kind = random()
    owner = pick_subject(random) if kind >= 0.7 else None
    groups = ["goods", "machines", "writings", "animals"]
    if owner is None:
        groups = ["writings", "food"] if kind < 0.4 else ["animals", "persons"]
    noun = pick(random, [noun for group in groups for noun in NOUNS[group]])
    parts = {"number": number, "nouns": (noun.english_plural, noun.german_plural)}
    if owner is not None:
        return say("{who} {have} {number} {nouns}.", who=owner, have=agree("have", owner), **parts)
    place = pick(random, pairs("surfaces") if kind < 0.4 else PLACES)
    are = ("there are", "liegen" if kind < 0.4 else "gibt es")
    both = "{are} {number} {nouns} {place}. | {place} {are} {number} {nouns}."
    return say(both, are=are, place=place, **parts)


@pattern(2)
def train(random: Random) -> Pair:
    """The train to Berlin departs at half past eight from platform 7."""
    city = pick(random, CITIES)
    time = pick(random, clock_times())
    platform = (str(_below(random, 1, 25)),) * 2
    return say(
        "the train to {city} departs {time} from platform {platform}. | "
        "der Zug nach {city} fährt {time} von Gleis {platform} ab.",
        city=city, time=time, platform=platform,
    )  # fmt: skip
