"""Sentence patterns: each draws its words and gives an English-German pair.

The first letter of a pair is small unless it is always capital.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from transformer_core.data.grammar.clauses import Clause, make_clause, pick_tense
from transformer_core.data.grammar.phrases import (
    Random,
    Subject,
    as_subject,
    cities,
    definite_phrases,
    names,
    pick,
    pick_subject,
    the_phrases,
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


def fill(english: str, german: str, **parts: Sequence[Any]) -> Pair:
    """A template of each language, with the English and German of each part."""
    return (
        english.format(**{name: part[0] for name, part in parts.items()}),
        german.format(**{name: part[1] for name, part in parts.items()}),
    )


def agree(verb: str, subject: Subject) -> Pair:
    """A verb of words.yaml in the person of a subject."""
    english, german = CONJUGATED[verb]
    return english[subject[2]], german[subject[2]]


def spaced(pair: Pair) -> Pair:
    """With a space before each that is not empty."""
    return pair[0] and f" {pair[0]}", pair[1] and f" {pair[1]}"


def capital(pair: Pair) -> Pair:
    """With capital first letters."""
    return pair[0][0].upper() + pair[0][1:], pair[1][0].upper() + pair[1][1:]


# One clause


def statement(random: Random) -> Pair:
    """Anna bought the book yesterday."""
    return fill("{all}.", "{all}.", all=make_clause(random, pick_tense(random)).main())


def fronted(random: Random) -> Pair:
    """Yesterday, Anna bought the book: the German verb stays second."""
    tense: Tense = pick(random, ("habit", "past", "past", "future", "modal"))
    return fill("{all}.", "{all}.", all=make_clause(random, tense, timed=True).fronted())


def question(random: Random) -> Pair:
    """Did Anna buy the book?"""
    tense = pick_tense(random)
    timed = random() < 0.4 if tense != "now" else None
    clause = make_clause(random, tense, negatable=False, timed=timed)
    return fill("{all}?", "{all}?", all=clause.question())


def open_question(random: Random) -> Pair:
    """When did Anna buy the book?"""
    tense: Tense = pick(random, ("habit", "past", "future", "modal"))
    asked = make_clause(random, tense, negatable=False, timed=False).question()
    when = pick(random, pairs("question_words"))
    return fill("{when} {asked}?", "{when} {asked}?", when=when, asked=asked)


def who_question(random: Random) -> Pair:
    """Who bought the book?"""
    who: Subject = ("who", "wer", THIRD)
    clause = make_clause(random, pick_tense(random), who, negatable=False, timed=True)
    return fill("{all}?", "{all}?", all=clause.main())


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
        return fill("“{said}?” asks {who}.", "„{said}?“, fragt {who}.", said=said, who=speaker)
    return fill("“{said},” says {who}.", "„{said}“, sagt {who}.", said=said, who=speaker)


# Several clauses


def _circumstance(random: Random, tense: Tense) -> Pair:
    if tense in ("now", "future") and random() < 0.2:
        return pick(random, pairs("weather"))
    return make_clause(random, tense).subclause()


def reason(random: Random) -> Pair:
    """Anna stayed at home because it was raining: the German verb comes last."""
    tense = pick_tense(random)
    main = make_clause(random, tense).main()
    because = pick(random, pairs("reasons"))
    comma = "," if because[0] == "although" else ""
    why = _circumstance(random, tense)
    return fill(
        f"{{main}}{comma} {{because}} {{why}}.",
        "{main}, {because} {why}.",
        main=main, because=because, why=why,
    )  # fmt: skip


def reason_first(random: Random) -> Pair:
    """Because it is raining, Anna stays at home: the German verb follows the comma."""
    tense = pick_tense(random)
    main = make_clause(random, tense)
    because = pick(random, pairs("reasons"))
    why = _circumstance(random, tense)
    both = "{because} {why}, {main}."
    return fill(both, both, because=because, why=why, main=main.after_a_clause())


def condition(random: Random) -> Pair:
    """If Anna buys the car tomorrow, Paul will sell the bicycle."""
    if random() < 0.3:
        event = pick(random, pairs("weather"))
    else:
        event = make_clause(random, "habit", timed=False).subclause()
    main = make_clause(random, pick(random, ("future", "modal"))).after_a_clause()
    return fill("if {event}, {main}.", "wenn {event}, {main}.", event=event, main=main)


def before(random: Random) -> Pair:
    """Before Anna went home, she had called; or the other way round."""
    first = make_clause(random, "past", negatable=False, timed=False)
    second = make_clause(random, "past", negatable=False, timed=False).subclause()
    if random() < 0.5:
        return fill("{a} before {b}.", "{a}, bevor {b}.", a=first.main(), b=second)
    return fill("before {b}, {a}.", "bevor {b}, {a}.", a=first.after_a_clause(), b=second)


def meanwhile(random: Random) -> Pair:
    """While Anna is sleeping, Paul is working."""
    first = make_clause(random, "now", negatable=False, timed=False).subclause()
    main = make_clause(random, "now", negatable=False, timed=False).after_a_clause()
    return fill("while {a}, {main}.", "während {a}, {main}.", a=first, main=main)


def coordination(random: Random) -> Pair:
    """Two main clauses."""
    tense = pick_tense(random)
    first = make_clause(random, tense).main()
    second = make_clause(random, tense if random() < 0.7 else pick_tense(random)).main()
    if random() < 0.5:
        return fill("{a}, and {b}.", "{a} und {b}.", a=first, b=second)
    return fill("{a}, but {b}.", "{a}, aber {b}.", a=first, b=second)


def two_predicates(random: Random) -> Pair:
    """Anna opens the window and reads a book."""
    tense = pick_tense(random)
    first = make_clause(random, tense, negatable=False)
    second = make_clause(random, tense, first.subject, negatable=False, timed=False)
    return fill("{a} and{b}.", "{a} und{b}.", a=first.main(), b=second.predicate())


def _matrix(random: Random, table: str, subject: Subject) -> Pair:
    """Subject and verb of a main clause, from a table of words.yaml."""
    english, german = map(by_person, pick(random, pairs(table)))
    verb = english[subject[2] == THIRD], german[subject[2]]
    return fill("{who} {verb}", "{who} {verb}", who=subject, verb=verb)


def that_clause(random: Random) -> Pair:
    """Anna thinks that Paul bought the car."""
    main = _matrix(random, "that", pick_subject(random))
    what = make_clause(random, pick_tense(random)).subclause()
    return fill("{main} that {what}.", "{main}, dass {what}.", main=main, what=what)


def whether_clause(random: Random) -> Pair:
    """Anna does not know whether Paul bought the car."""
    main = _matrix(random, "whether", pick_subject(random))
    what = make_clause(random, pick_tense(random), negatable=False).subclause()
    return fill("{main} whether {what}.", "{main}, ob {what}.", main=main, what=what)


def _infinitive(random: Random, person: int) -> Pair:
    """An infinitive with its object: English after to, German with zu at the end."""
    verb = pick(random, verbs_of_doing())
    english, *german = verb_object(random, verb, person)
    return (
        f"to {verb.english}{english}",
        f"{verb.reflexive[person]}{''.join(german)} {verb.to_infinitive}",
    )


def infinitive(random: Random) -> Pair:
    """Anna tries to repair the car."""
    subject = pick_subject(random)
    main = _matrix(random, "to", subject)
    return fill("{main} {to}.", "{main},{to}.", main=main, to=_infinitive(random, subject[2]))


def purpose(random: Random) -> Pair:
    """Anna goes to the city to buy a book: um ... zu."""
    subject = pick_subject(random)
    tense = pick_tense(random)
    form = pick(random, pick(random, verbs()["direction"]).forms[tense][subject[2]])
    place, ort = pick(random, DIRECTIONS)
    time = pick(random, times()[tense]) if random() < 0.5 or tense == "now" else NOTHING
    main = Clause(subject, form, (f" {place}", "", "", f" {ort}"), time).main()
    return fill("{main} {to}.", "{main}, um{to}.", main=main, to=_infinitive(random, subject[2]))


def relative_subject(random: Random) -> Pair:
    """The man who bought the car yesterday works in Berlin."""
    found = pick(random, the_phrases("persons", "nominative"))
    subject = as_subject(found)
    clause = make_clause(random, pick_tense(random), subject)
    who = clause.relative({"m": "der", "f": "die", "n": "das", "p": "die"}[found.gender])
    main = make_clause(random, pick_tense(random), subject).predicate()
    return fill(
        "{subject} {who}{main}.", "{subject}, {who},{main}.", subject=subject, who=who, main=main
    )


@cache
def _verbs_by_group() -> list[tuple[str, list[Verb]]]:
    """Verbs with a plain object, by a group of nouns that at least two of them take."""
    found: dict[str, list[Verb]] = {}
    for verb in verbs()["object"]:
        if verb.plain:
            for group in verb.groups:
                found.setdefault(group, []).append(verb)
    return [(group, members) for group, members in found.items() if len(members) > 1]


def relative_object(random: Random) -> Pair:
    """Anna is reading the book that Paul bought: a relative pronoun in the accusative."""
    group, candidates = pick(random, _verbs_by_group())
    english, german, gender = pick(random, the_phrases(group, "accusative"))
    subject = pick_subject(random)
    tense: Tense = pick(random, ("habit", "past", "future", "modal"))
    form = pick(random, pick(random, candidates).forms[tense][subject[2]])
    main = Clause(subject, form, (f" {english}", "", "", f" {german}")).main()
    other = pick_subject(random)
    past: Tense = pick(random, ("past", "past", "modal"))
    form = pick(random, pick(random, candidates).forms[past][other[2]])
    time = pick(random, times()[past]) if random() < 0.5 else NOTHING
    inner = Clause(other, form, ("", "", "", ""), time).subclause()
    that = (
        "whom" if group == "persons" else "that",
        {"m": "den", "f": "die", "n": "das", "p": "die"}[gender],
    )
    return fill(
        "{main} {that} {inner}.", "{main}, {that} {inner}.", main=main, that=that, inner=inner
    )


def relative_reason(random: Random) -> Pair:
    """Long sentences: a relative clause, a reason and a second clause."""
    start, beginn = relative_subject(random)
    tense = pick_tense(random)
    why = make_clause(random, tense).subclause()
    other = make_clause(random, tense).main()
    return fill(
        "{start} because {why}, but {other}.",
        "{start}, weil {why}, aber {other}.",
        start=(start[:-1], beginn[:-1]), why=why, other=other,
    )  # fmt: skip


# Qualities, and what is done to things

_THINGS = ("writings", "goods", "machines", "food", "drinks", "buildings", "animals")


def _thing(random: Random, group: str) -> Subject:
    return as_subject(pick(random, definite_phrases(group, "nominative")))


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
    parts = {
        "very": (degree[0] and f"{degree[0]} ", degree[1] and f"{degree[1]} "),
        "a": (first.english, first.german),
        "b": (second.english, second.german),
    }
    if first is second or random() < 0.6:
        return fill("{very}{a}", "{very}{a}", **parts)
    if degree[0] in ("not", "no longer"):
        return fill("{a} but {very}{b}", "{a}, aber {very}{b}", **parts)
    return fill("{very}{a} and {b}", "{very}{a} und {b}", **parts)


def description(random: Random) -> Pair:
    """The house is very old and expensive."""
    subject, adjectives = _described(random)
    quality = _quality(random, adjectives)
    be = agree("was" if random() < 0.3 else "be", subject)
    return fill("{it} {be} {so}.", "{it} {be} {so}.", it=subject, be=be, so=quality)


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
        return fill(
            "{it} {be} {more} than {other}.", "{it} {be} {more} als {other}.", more=more, **parts
        )
    negation = ("not ", "nicht ") if random() < 0.4 else NOTHING
    return fill(
        "{it} {be} {no}as {old} as {other}.",
        "{it} {be} {no}so {old} wie {other}.",
        no=negation, old=(adjective.english, adjective.german), **parts,
    )  # fmt: skip


def came_home(random: Random) -> Pair:
    """When Anna came home, the kitchen was dark: the German simple past."""
    who = pick_subject(random)
    place = pick(random, DIRECTIONS) if random() < 0.5 else pick(random, cities())[2:]
    subject, adjectives = _described(random)
    quality = _quality(random, adjectives)
    return fill(
        "when {who} {came} {place}, {it} {was} {so}.",
        "als {who} {place} {came}, {was} {it} {so}.",
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


def passive(random: Random) -> Pair:
    """The bridge was painted by Anna in 1987."""
    verb, group = pick(random, _passive_verbs())
    found = pick(random, the_phrases(group, "nominative"))
    many = found.gender == "p"
    by = NOTHING
    if random() < 0.4:
        name, wer = pick(random, names("dative"))
        by = f" by {name}", f" von {wer}"
    parts = {"it": found[:2], "by": by, "done": (verb.english_participle, verb.participle)}
    kind = random()
    if kind < 0.6:
        time = spaced(pick(random, times()["past"]) if random() < 0.7 else NOTHING)
        was = ("were", "wurden") if many else ("was", "wurde")
        return fill(
            "{it} {was} {done}{by}{time}.",
            "{it} {was}{time}{by} {done}.",
            was=was,
            time=time,
            **parts,
        )
    if kind < 0.8:
        be = ("are", "werden") if many else ("is", "wird")
        return fill("{it} {be} being {done}{by}.", "{it} {be} gerade{by} {done}.", be=be, **parts)
    time = pick(random, times()["future"])
    must = ("have", "müssen") if many else ("has", "muss")
    return fill(
        "{it} {must} to be {done}{by} {time}.",
        "{it} {must} {time}{by} {done} werden.",
        must=must, time=time, **parts,
    )  # fmt: skip


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


def price(random: Random) -> Pair:
    """The car costs 12,500 euros."""
    group = pick(random, ("goods", "machines", "writings", "food", "buildings"))
    found = pick(random, definite_phrases(group, "nominative"))
    parts = {"it": found[:2], "amount": _amount(random, group)}
    many = found.gender == "p"
    if random() < 0.3:
        has = "haben" if many else "hat"
        return fill("{it} cost {amount} euros.", f"{{it}} {has} {{amount}} Euro gekostet.", **parts)
    costs = ("cost", "kosten") if many else ("costs", "kostet")
    each = (" each", "je ") if many and random() < 0.5 else NOTHING
    now = ("now ", "jetzt ") if random() < 0.3 else NOTHING
    return fill(
        "{it} {now}{costs} {amount} euros{each}.",
        "{it} {costs} {now}{each}{amount} Euro.",
        costs=costs, each=each, now=now, **parts,
    )  # fmt: skip


def age(random: Random) -> Pair:
    """Anna is twenty-one years old."""
    who = pick_subject(random)
    number = number_words(_below(random, 2, 100))
    return fill(
        "{who} {be} {number} years old.",
        "{who} {be} {number} Jahre alt.",
        who=who, be=agree("be", who), number=number,
    )  # fmt: skip


def birth(random: Random) -> Pair:
    """Anna was born in Berlin on 3 May 1987."""
    who = pick_subject(random)
    day, year = pick(random, dates()), str(_below(random, 1900, 2021))
    city = pick(random, cities())[:2]
    return fill(
        "{who} {was} born {city} {day} {year}.",
        "{who} {was} {day} {year} {city} geboren.",
        who=who, was=agree("was_born", who), city=city, day=day, year=(year, year),
    )  # fmt: skip


def _two_cities(random: Random) -> dict[str, Pair]:
    start, end = int(random() * len(CITIES)), int(random() * (len(CITIES) - 1))
    return {"start": CITIES[start], "end": CITIES[end + (end >= start)]}


def distance(random: Random) -> Pair:
    """It is 585 kilometres from Berlin to Munich."""
    between = _two_cities(random)
    return fill(
        "it is {number} kilometres from {start} to {end}.",
        "von {start} nach {end} sind es {number} Kilometer.",
        number=grouped(_below(random, 80, 9_000)), **between,
    )  # fmt: skip


def duration(random: Random) -> Pair:
    """Anna has been living in Berlin for six years: the present tense in German."""
    number = number_words(_below(random, 2, 13))
    if random() < 0.4:
        return fill(
            "the journey from {start} to {end} takes {number} hours.",
            "die Reise von {start} nach {end} dauert {number} Stunden.",
            number=number, **_two_cities(random),
        )  # fmt: skip
    who = pick_subject(random)
    city = pick(random, cities())[:2]
    unit, accusative, dative = pick(random, pairs("units"))
    parts = {"who": who, "city": city, "number": number}
    if random() < 0.6:
        return fill(
            "{who} {live} been living {city} for {number} {unit}.",
            "{who} {live} seit {number} {unit} {city}.",
            live=agree("have_been_living", who), unit=(unit, dative), **parts,
        )  # fmt: skip
    return fill(
        "{who} worked {city} for {number} {unit}.",
        "{who} {have} {number} {unit} lang {city} gearbeitet.",
        have=agree("have", who), unit=(unit, accusative), **parts,
    )  # fmt: skip


def inhabitants(random: Random) -> Pair:
    """About 350,000 people live in Bern: the place comes first in German."""
    city = pick(random, cities())[:2]
    number = grouped(_below(random, 90, 9_000) * 1_000)
    return fill(
        "about {number} people live {city}.",
        "{city} leben etwa {number} Menschen.",
        number=number, city=city,
    )  # fmt: skip


def share(random: Random) -> Pair:
    """27.5 per cent of the teachers work in Berlin."""
    noun = pick(random, NOUNS["persons"])
    city = pick(random, cities())[:2]
    live = pick(random, (("live", "leben"), ("work", "arbeiten"), ("sleep", "schlafen")))
    number = f"{_below(random, 2, 99)}.{_below(random, 1, 10)}"
    if random() < 0.5:
        number = str(_below(random, 2, 99))
    return fill(
        "{number} per cent of the {nouns} {live} {city}.",
        "{number} Prozent der {nouns} {live} {city}.",
        number=(number, number.replace(".", ",")), live=live, city=city,
        nouns=(noun.english_plural, noun.german_plural),
    )  # fmt: skip


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
        both = "{who} {have} {number} {nouns}."
        return fill(both, both, who=owner, have=agree("have", owner), **parts)
    place = pick(random, pairs("surfaces") if kind < 0.4 else PLACES)
    are = ("there are", "liegen" if kind < 0.4 else "gibt es")
    return fill(
        "{are} {number} {nouns} {place}.",
        "{place} {are} {number} {nouns}.",
        are=are, place=place, **parts,
    )  # fmt: skip


def train(random: Random) -> Pair:
    """The train to Berlin departs at half past eight from platform 7."""
    city = pick(random, CITIES)
    time = pick(random, clock_times())
    platform = _below(random, 1, 25)
    return fill(
        f"the train to {{city}} departs {{time}} from platform {platform}.",
        f"der Zug nach {{city}} fährt {{time}} von Gleis {platform} ab.",
        city=city, time=time,
    )  # fmt: skip


_WEIGHTS: dict[Pattern, int] = {
    statement: 14,
    fronted: 10,
    question: 6,
    open_question: 3,
    who_question: 2,
    reason: 6,
    reason_first: 4,
    condition: 4,
    before: 3,
    meanwhile: 3,
    coordination: 6,
    two_predicates: 4,
    that_clause: 6,
    whether_clause: 3,
    infinitive: 4,
    purpose: 4,
    relative_subject: 6,
    relative_object: 5,
    relative_reason: 2,
    request: 3,
    speech: 4,
    description: 5,
    comparison: 3,
    came_home: 2,
    passive: 4,
    price: 4,
    age: 1,
    birth: 1,
    distance: 1,
    duration: 2,
    inhabitants: 1,
    share: 2,
    stock: 3,
    train: 2,
}


@cache
def pattern_table() -> list[Pattern]:
    """Every pattern as often as its weight."""
    return [pattern for pattern, weight in _WEIGHTS.items() for _ in range(weight)]
