"""Sentences of one clause: statements, questions, requests, speech."""

from functools import cache

from transformer_core.data.grammar.clauses import make_clause, pick_tense
from transformer_core.data.grammar.phrases import (
    Random,
    Subject,
    pick,
    pick_subject,
    verb_object,
)
from transformer_core.data.grammar.verbs import THIRD, THIRD_PLURAL, Tense, Verb, verbs

Pair = tuple[str, str]

_WH = [("when", "wann"), ("why", "warum"), ("how often", "wie oft")]


def statement(random: Random) -> Pair:
    """Anna bought the book yesterday."""
    english, german = make_clause(random, pick_tense(random)).main()
    return f"{english}.", f"{german}."


def fronted(random: Random) -> Pair:
    """Yesterday, Anna bought the book: the German verb stays second."""
    tense: Tense = pick(random, ("habit", "past", "past", "future", "modal"))
    english, german = make_clause(random, tense, timed=True).fronted()
    return f"{english}.", f"{german}."


def question(random: Random) -> Pair:
    """Did Anna buy the book?"""
    tense = pick_tense(random)
    timed = random() < 0.4 if tense != "now" else None
    clause = make_clause(random, tense, negatable=False, timed=timed)
    english, german = clause.question()
    return f"{english}?", f"{german}?"


def open_question(random: Random) -> Pair:
    """When did Anna buy the book?"""
    tense: Tense = pick(random, ("habit", "past", "future", "modal"))
    clause = make_clause(random, tense, negatable=False, timed=False)
    english, german = clause.question()
    word, wort = pick(random, _WH)
    return f"{word} {english}?", f"{wort} {german}?"


def who_question(random: Random) -> Pair:
    """Who bought the book?"""
    subject: Subject = ("who", "wer", THIRD)
    clause = make_clause(random, pick_tense(random), subject, negatable=False, timed=True)
    english, german = clause.main()
    return f"{english}?", f"{german}?"


@cache
def verbs_of_doing() -> list[Verb]:
    """What somebody can plan, promise or be asked to do."""
    return [verb for verb in verbs()["object"] if verb.progressive]


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
    name, _, _ = speaker = pick_subject(random)
    while speaker[2] != THIRD or name in ("he", "she"):
        name, _, _ = speaker = pick_subject(random)
    asked = random() < 0.3
    first: Subject = ("you", "du", 1) if asked else ("I", "ich", 0)
    clause = make_clause(
        random, pick_tense(random), first, negatable=not asked, timed=asked or None
    )
    english, german = clause.question() if asked else clause.main()
    english, german = english[0].upper() + english[1:], german[0].upper() + german[1:]
    if asked:
        return f"“{english}?” asks {name}.", f"„{german}?“, fragt {speaker[1]}."
    return f"“{english},” says {name}.", f"„{german}“, sagt {speaker[1]}."
