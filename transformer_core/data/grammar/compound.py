"""Sentences of several clauses: subordinate, infinitive, relative and coordinated."""

from functools import cache

from transformer_core.data.grammar.clauses import Clause, make_clause, pick_tense
from transformer_core.data.grammar.inflection import the_phrases
from transformer_core.data.grammar.phrases import (
    Random,
    Subject,
    pick,
    pick_subject,
    verb_object,
)
from transformer_core.data.grammar.proper_names import DIRECTIONS
from transformer_core.data.grammar.simple import Pair, verbs_of_doing
from transformer_core.data.grammar.times import times
from transformer_core.data.grammar.verbs import THIRD, THIRD_PLURAL, Tense, Verb, verbs

_REASONS = [
    ("because", "weil"),
    ("because", "weil"),
    ("although", "obwohl"),
]
_WEATHER = [
    ("it is raining", "es regnet"),
    ("it is snowing", "es schneit"),
    ("it is cold", "es kalt ist"),
    ("it is already late", "es schon spät ist"),
    ("the weather is good", "das Wetter gut ist"),
    ("the sun is shining", "die Sonne scheint"),
    ("there is no time left", "keine Zeit mehr bleibt"),
]
# English and German by person: what introduces a clause with that, whether, or an infinitive.
_THAT = [
    (("think", "thinks"), "glaube glaubst glaubt glauben glauben"),
    (("hope", "hopes"), "hoffe hoffst hofft hoffen hoffen"),
    (("know", "knows"), "weiß weißt weiß wissen wissen"),
    (("say", "says"), "sage sagst sagt sagen sagen"),
]
_WHETHER = [
    (("ask", "asks"), "frage fragst fragt fragen fragen"),
    (
        ("do not know", "does not know"),
        "weiß_nicht weißt_nicht weiß_nicht wissen_nicht wissen_nicht",
    ),
]
_TO = [
    (("try", "tries"), "versuche versuchst versucht versuchen versuchen"),
    (("plan", "plans"), "plane planst plant planen planen"),
    (("promise", "promises"), "verspreche versprichst verspricht versprechen versprechen"),
    (
        ("decided", "decided"),
        "habe_beschlossen hast_beschlossen hat_beschlossen haben_beschlossen haben_beschlossen",
    ),
    (
        ("forgot", "forgot"),
        "habe_vergessen hast_vergessen hat_vergessen haben_vergessen haben_vergessen",
    ),
]
_RELATIVE_NOMINATIVE = {"m": "der", "f": "die", "n": "das", "p": "die"}
_RELATIVE_ACCUSATIVE = {"m": "den", "f": "die", "n": "das", "p": "die"}


def reason(random: Random) -> Pair:
    """Anna stayed at home because it was raining: the German verb comes last."""
    tense = pick_tense(random)
    main = make_clause(random, tense).main()
    conjunction, konjunktion = pick(random, _REASONS)
    english, german = _circumstance(random, tense)
    comma = "," if conjunction == "although" else ""
    return f"{main[0]}{comma} {conjunction} {english}.", f"{main[1]}, {konjunktion} {german}."


def reason_first(random: Random) -> Pair:
    """Because it is raining, Anna stays at home: the German verb follows the comma."""
    tense = pick_tense(random)
    main = make_clause(random, tense)
    conjunction, konjunktion = pick(random, _REASONS)
    english, german = _circumstance(random, tense)
    return (
        f"{conjunction} {english}, {main.main()[0]}.",
        f"{konjunktion} {german}, {main.inverted()}.",
    )


def _circumstance(random: Random, tense: Tense) -> Pair:
    if tense in ("now", "future") and random() < 0.2:
        return pick(random, _WEATHER)
    return make_clause(random, tense).subclause()


def condition(random: Random) -> Pair:
    """If Anna buys the car tomorrow, Paul will sell the bicycle."""
    if random() < 0.3:
        english, german = pick(random, _WEATHER)
    else:
        english, german = make_clause(random, "habit", timed=False).subclause()
    main = make_clause(random, pick(random, ("future", "modal")))
    return f"if {english}, {main.main()[0]}.", f"wenn {german}, {main.inverted()}."


def before(random: Random) -> Pair:
    """Before Anna went home, she had called; or the other way round."""
    first = make_clause(random, "past", negatable=False, timed=False)
    second = make_clause(random, "past", negatable=False, timed=False)
    english, german = second.subclause()
    if random() < 0.5:
        main = first.main()
        return f"{main[0]} before {english}.", f"{main[1]}, bevor {german}."
    return f"before {english}, {first.main()[0]}.", f"bevor {german}, {first.inverted()}."


def meanwhile(random: Random) -> Pair:
    """While Anna is sleeping, Paul is working."""
    english, german = make_clause(random, "now", negatable=False, timed=False).subclause()
    main = make_clause(random, "now", negatable=False, timed=False)
    return f"while {english}, {main.main()[0]}.", f"während {german}, {main.inverted()}."


def coordination(random: Random) -> Pair:
    """Two main clauses."""
    tense = pick_tense(random)
    first = make_clause(random, tense).main()
    second = make_clause(random, tense if random() < 0.7 else pick_tense(random)).main()
    if random() < 0.5:
        return f"{first[0]}, and {second[0]}.", f"{first[1]} und {second[1]}."
    return f"{first[0]}, but {second[0]}.", f"{first[1]}, aber {second[1]}."


def two_predicates(random: Random) -> Pair:
    """Anna opens the window and reads a book."""
    tense = pick_tense(random)
    first = make_clause(random, tense, negatable=False)
    second = make_clause(random, tense, first.subject, negatable=False, timed=False)
    english, german = second.predicate()
    main = first.main()
    return f"{main[0]} and{english}.", f"{main[1]} und{german}."


def _matrix(random: Random, table: list[tuple[Pair, str]], subject: Subject) -> Pair:
    """Subject and verb of a main clause, from a table of verbs by person."""
    (base, third), german = pick(random, table)
    verb = third if subject[2] == THIRD else base
    finite = german.split()[subject[2]].replace("_", " ")
    return f"{subject[0]} {verb}", f"{subject[1]} {finite}"


def that_clause(random: Random) -> Pair:
    """Anna thinks that Paul bought the car."""
    english, german = _matrix(random, _THAT, pick_subject(random))
    sub = make_clause(random, pick_tense(random)).subclause()
    return f"{english} that {sub[0]}.", f"{german}, dass {sub[1]}."


def whether_clause(random: Random) -> Pair:
    """Anna does not know whether Paul bought the car."""
    english, german = _matrix(random, _WHETHER, pick_subject(random))
    sub = make_clause(random, pick_tense(random), negatable=False).subclause()
    return f"{english} whether {sub[0]}.", f"{german}, ob {sub[1]}."


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
    english, german = _matrix(random, _TO, subject)
    to, zu = _infinitive(random, subject[2])
    return f"{english} {to}.", f"{german},{zu}."


def purpose(random: Random) -> Pair:
    """Anna goes to the city to buy a book: um ... zu."""
    subject = pick_subject(random)
    tense = pick_tense(random)
    verb = pick(random, verbs()["direction"])
    form = pick(random, verb.forms[tense][subject[2]])
    place, ort = pick(random, DIRECTIONS)
    time = pick(random, times()[tense]) if random() < 0.5 or tense == "now" else ("", "")
    main = Clause(subject, form, (f" {place}", "", "", f" {ort}"), time).main()
    to, zu = _infinitive(random, subject[2])
    return f"{main[0]} {to}.", f"{main[1]}, um{zu}."


def relative_subject(random: Random) -> Pair:
    """The man who bought the car yesterday works in Berlin."""
    english, german, gender = pick(random, the_phrases("persons", "nominative"))
    subject = english, german, THIRD_PLURAL if gender == "p" else THIRD
    relative = make_clause(random, pick_tense(random), subject)
    who, der = relative.relative(_RELATIVE_NOMINATIVE[gender])
    main = make_clause(random, pick_tense(random), subject).predicate()
    return f"{english} {who}{main[0]}.", f"{german}, {der},{main[1]}."


@cache
def _verbs_by_group() -> dict[str, list[Verb]]:
    """Verbs with a plain accusative object, by a group of nouns that at least two of them take."""
    found: dict[str, list[Verb]] = {}
    for verb in verbs()["object"]:
        if verb.case == "accusative" and not verb.preposition and not any(verb.reflexive):
            for group in verb.groups:
                found.setdefault(group, []).append(verb)
    return {group: members for group, members in found.items() if len(members) > 1}


def relative_object(random: Random) -> Pair:
    """Anna is reading the book that Paul bought: a relative pronoun in the accusative."""
    groups = list(_verbs_by_group().items())
    group, candidates = pick(random, groups)
    english, german, gender = pick(random, the_phrases(group, "accusative"))
    subject = pick_subject(random)
    tense: Tense = pick(random, ("habit", "past", "future", "modal"))
    form = pick(random, pick(random, candidates).forms[tense][subject[2]])
    main = Clause(subject, form, (f" {english}", "", "", f" {german}")).main()
    other = pick_subject(random)
    past: Tense = pick(random, ("past", "past", "modal"))
    inner_form = pick(random, pick(random, candidates).forms[past][other[2]])
    inner_time = pick(random, times()[past]) if random() < 0.5 else ("", "")
    inner = Clause(other, inner_form, ("", "", "", ""), inner_time).subclause()
    pronoun = _RELATIVE_ACCUSATIVE[gender]
    that = "whom" if group == "persons" else "that"
    return f"{main[0]} {that} {inner[0]}.", f"{main[1]}, {pronoun} {inner[1]}."


def relative_reason(random: Random) -> Pair:
    """Long sentences: a relative clause, a reason and a second clause."""
    start, beginn = relative_subject(random)
    tense = pick_tense(random)
    english, german = make_clause(random, tense).subclause()
    other = make_clause(random, tense).main()
    return (
        f"{start[:-1]} because {english}, but {other[0]}.",
        f"{beginn[:-1]}, weil {german}, aber {other[1]}.",
    )
