"""Clauses in every order that English and German ask for."""

from transformer_core.data.grammar.phrases import (
    Piece,
    Random,
    Subject,
    cities,
    noun_object,
    person_object,
    pick,
    pick_subject,
    verb_object,
)
from transformer_core.data.grammar.words import (
    DIRECTIONS,
    PLACES,
    Form,
    Pair,
    Tense,
    Verb,
    pairs,
    times,
    verbs,
)

_TENSES: tuple[Tense, ...] = ("habit", "now", "past", "past", "future", "modal")
_KINDS = ("object",) * 6 + ("local",) * 2 + ("gift", "gift", "direction", "city", "time")


def complement(random: Random, person: int, negated: bool = False) -> tuple[Verb, Piece]:
    """A verb and all that it needs beside a subject in ``person``, reflexive pronoun included."""
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
    """One clause in both languages. Its methods give it in the orders that sentences need."""

    __slots__ = ("adverb", "after", "before", "form", "negated", "object", "subject", "time")

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
        """``time_first`` puts the German time phrase before what is known, else it comes after."""
        self.subject = subject
        self.form = form
        self.object, pronouns, known, new = piece
        self.before = pronouns if time_first else pronouns + known
        self.after = known + new if time_first else new
        self.time = time
        self.adverb = adverb
        self.negated = negated

    def predicate(self) -> Pair:
        """Without the subject, verb first: what a second clause adds after and."""
        form, (en_time, de_time) = self.form, self.time
        en_time = en_time and f" {en_time}"
        de_time = de_time and f" {de_time}"
        if self.negated:
            english = f"{form.negation} {form.base}{self.object}{en_time}"
        else:
            english = f"{form.before}{self.adverb} {form.verb}{self.object}{en_time}"
        german = f" {form.finite}{self.before}{de_time}{self.after}{form.bracket}"
        return english, german

    def main(self) -> Pair:
        """A main clause, subject first."""
        english, german = self.predicate()
        return self.subject[0] + english, self.subject[1] + german

    def after_a_clause(self) -> Pair:
        """A main clause that follows another one: the German verb comes first."""
        return self.main()[0], self.inverted()

    def inverted(self) -> str:
        """German verb first, as after anything fronted and in questions."""
        form, time = self.form, self.time[1]
        time = time and f" {time}"
        subject = self.subject[1]
        return f"{form.finite} {subject}{self.before}{time}{self.after}{form.bracket}"

    def fronted(self) -> Pair:
        """A main clause, time first; the time must not be empty in either language."""
        en_time, de_time = self.time
        self.time = "", ""
        english, _ = self.main()
        return f"{en_time}, {english}", f"{de_time} {self.inverted()}"

    def question(self) -> Pair:
        """A yes-or-no question, without the mark."""
        form, time = self.form, self.time[0]
        time = time and f" {time}"
        english = f"{form.question} {self.subject[0]} {form.base}{self.object}{time}"
        return english, self.inverted()

    def subclause(self) -> Pair:
        """After a conjunction: the same English, German with the verb at its end."""
        time = self.time[1]
        time = time and f" {time}"
        german = f"{self.subject[1]}{self.before}{time}{self.after}{self.form.final}"
        return self.main()[0], german

    def relative(self, pronoun: str) -> Pair:
        """A relative clause whose subject is the relative pronoun."""
        time = self.time[1]
        time = time and f" {time}"
        german = f"{pronoun}{self.before}{time}{self.after}{self.form.final}"
        return f"who{self.predicate()[0]}", german


def pick_tense(random: Random) -> Tense:
    """A tense, the past more often than others."""
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
            # Not every day, or every day not? The two languages would differ.
            timed = False
        else:
            timed = random() < 0.6
            if not (timed or negated) and tense in ("habit", "past") and random() < 0.4:
                adverb, german = pick(random, pairs("adverbs"))
                return Clause(subject, form, piece, ("", german), f" {adverb}")
    time = pick(random, times()[tense]) if timed else ("", "")
    return Clause(subject, form, piece, time, negated=negated, time_first=time_first)
