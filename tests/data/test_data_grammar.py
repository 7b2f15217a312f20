"""The built-in corpus: its pairs never change, and both languages are grammatical."""

import hashlib
import re
from collections import defaultdict
from random import Random
from typing import get_args

import pytest

from transformer_core.data.grammar.clauses import Case, Clause, Phrase, make_clause, phrases
from transformer_core.data.grammar.sentences import PATTERNS
from transformer_core.data.grammar.stream import generate, invented_names, rename
from transformer_core.data.grammar.words import Tense, Verb, number_words, verbs

SECOND_AND_THIRD = [
    (
        "Anna's tired friend called my colleague in July.",
        "Annas müder Freund hat meinen Kollegen im Juli angerufen.",
    ),
    ("This key was green but not small.", "Dieser Schlüssel war grün, aber nicht klein."),
]


@pytest.fixture(scope="module")
def pairs():
    return list(generate(1, "train", range(15_000)))


def test_the_stream_does_not_change():
    # We compare results across machines, so a change of these pairs would be another corpus.
    assert list(generate(1, "train", range(3)))[1:] == SECOND_AND_THIRD
    digest = hashlib.sha256(
        repr(list(generate(42, "test", range(2_500), 500))).encode()
    ).hexdigest()
    assert digest == "b18d0cdbca9399beed62ee7898c802ace5309bad296b8632796ac9af3e99b443"


def test_sentences_are_hardly_ever_repeated(pairs):
    seen = set(pairs)
    assert len(seen) > 0.98 * len(pairs)
    for split in ("validation", "test"):
        held_out = list(generate(1, split, range(1_000)))
        assert sum(pair in seen for pair in held_out) < 20


def test_one_english_sentence_has_one_translation(pairs):
    translations = defaultdict(set)
    for english, german in pairs:
        translations[english].add(german)
    assert [found for found in translations.values() if len(found) > 1] == []


@pytest.mark.parametrize("pattern", list(dict.fromkeys(PATTERNS)))
def test_spacing_punctuation_and_capitals_of_every_pattern(pattern):
    random = Random(7).random
    for _ in range(300):
        for text in pattern(random):
            assert re.search(r"[.?!]$", text), text
            assert not re.search(r"  | [,.?!]|,,|\.\.|[{}_|]|\bNone\b|^ ", text), text
            opening, closing = ("„", "“") if "„" in text else ("“", "”")
            assert text.count(opening) == text.count(closing), text
            assert not re.search(r"\bi\b", text), text


NUMBERS = {
    17: ("seventeen", "siebzehn"),
    21: ("twenty-one", "einundzwanzig"),
    76: ("seventy-six", "sechsundsiebzig"),
    101: ("one hundred and one", "einhunderteins"),
    345: ("three hundred and forty-five", "dreihundertfünfundvierzig"),
}


def test_numbers_in_words():
    assert {number: number_words(number) for number in NUMBERS} == NUMBERS


def german_of(english: str, table: list[Phrase]) -> str:
    (found,) = {phrase.german for phrase in table if phrase.english == english}
    return found


AGREEMENT = {
    "definite": {
        ("the old man", "persons"): "der alte Mann|den alten Mann|dem alten Mann",
        ("the old woman", "persons"): "die alte Frau|die alte Frau|der alten Frau",
        ("the old child", "persons"): "das alte Kind|das alte Kind|dem alten Kind",
        ("the old children", "persons"): "die alten Kinder|die alten Kinder|den alten Kindern",
        ("my clever brother", "persons"): "mein kluger|meinen klugen|meinem klugen Bruder",
        ("Anna's expensive tower", "buildings"): "Annas teurer|Annas teuren|Annas teurem Turm",
        ("the boy", "persons"): "der Junge|den Jungen|dem Jungen",
    },
    "indefinite": {
        ("an old man", "persons"): "ein alter Mann|einen alten Mann|einem alten Mann",
        ("a tired singer", "persons"): "eine müde|eine müde|einer müden Sängerin",
        ("an egg", "food"): "ein Ei|ein Ei|einem Ei",
        ("hot coffee", "drinks"): "heißer Kaffee|heißen Kaffee|heißem Kaffee",
    },
    "counted": {
        ("many old books", "writings"): "viele alte Bücher|viele alte Bücher|vielen alten Büchern",
        ("fresh tomatoes", "food"): "frische Tomaten|frische Tomaten|frischen Tomaten",
        ("every young student", "persons"): "jeder junge|jeden jungen|jedem jungen Studenten",
    },
}


@pytest.mark.parametrize("kind", AGREEMENT)
def test_phrases_agree(kind):
    for (english, group), forms in AGREEMENT[kind].items():
        for case, form in zip(get_args(Case), forms.split("|"), strict=True):
            assert german_of(english, phrases(kind, group, case)).startswith(form), (english, case)


def verb(english: str) -> Verb:
    (found,) = [item for members in verbs().values() for item in members if item.english == english]
    return found


ANNA, ME, WE = ("Anna", "Anna", 2), ("I", "ich", 0), ("we", "wir", 3)
BOOK = (" the book", "", " das Buch", "")
DOOR = (" the door", "", " die Tür", "")
YESTERDAY, TOMORROW = ("yesterday", "gestern"), ("tomorrow", "morgen")


def clause(subject: tuple[str, str, int], name: str, tense: Tense, piece, **more) -> Clause:
    return Clause(subject, verb(name).forms[tense][subject[2]][0], piece, **more)


def test_perfect_brackets_its_clause():
    bought = clause(ANNA, "buy", "past", BOOK, time=YESTERDAY)
    assert bought.main() == ("Anna bought the book yesterday", "Anna hat das Buch gestern gekauft")
    assert bought.subclause()[1] == "Anna das Buch gestern gekauft hat"
    assert bought.question() == (
        "did Anna buy the book yesterday",
        "hat Anna das Buch gestern gekauft",
    )
    assert bought.relative("die") == (
        "who bought the book yesterday",
        "die das Buch gestern gekauft hat",
    )
    assert bought.fronted() == (
        "yesterday, Anna bought the book",
        "gestern hat Anna das Buch gekauft",
    )


def test_separable_prefix_goes_to_the_end_or_stays():
    opens = clause(ME, "open", "habit", DOOR)
    assert opens.main() == ("I open the door", "ich mache die Tür auf")
    assert opens.subclause()[1] == "ich die Tür aufmache"
    assert clause(ME, "open", "past", DOOR).main()[1] == "ich habe die Tür aufgemacht"
    assert clause(ME, "open", "future", DOOR).subclause()[1] == "ich die Tür aufmachen werde"
    assert verb("open").to_infinitive == "aufzumachen"
    assert verb("buy").to_infinitive == "zu kaufen"


@pytest.mark.parametrize("tense", ["habit", "now", "past", "future", "modal"])
def test_a_clause_is_negated_once_in_both_languages(tense):
    random = Random(5).random
    for _ in range(2_000):
        made = make_clause(random, tense)
        english, german = made.main()
        count = len(re.findall(r"\bnicht\b|\bkein(?:e[nmrs]?)?\b", german))
        assert count == len(re.findall(r"\bnot\b|\bcannot\b", english)) == made.negated, german


def test_names_are_distinct_and_do_not_change():
    names = invented_names(60_000)
    assert len(set(names)) == 60_000
    assert names[:2] == invented_names(2)


def test_every_name_of_both_sentences_is_replaced_by_the_next_one():
    pair = "Anna's Jonas met Mia, Annas and Paris.", "Annas Jonas traf Mia, Anna und Parisien."
    found = rename(pair, iter(["One", "Two", "Three"]))
    assert found == (
        "One's Two met Three, Ones and Paris.",
        "Ones Two traf Three, One und Parisien.",
    )
