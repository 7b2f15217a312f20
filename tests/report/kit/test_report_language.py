"""Every text of the templates and of the figures' captions is in both languages."""

import re
from functools import cache
from pathlib import Path

from babel.messages.extract import extract_python
from jinja2.ext import babel_extract

from transformer_core.certify.bounds import WORDS
from transformer_core.report.compare_page import TITLES
from transformer_core.report.contents import SECTIONS
from transformer_core.report.kit import language
from transformer_core.report.kit.drawing import captions
from transformer_core.report.kit.language import say
from transformer_core.report.sections import layers, memory, profiles, variants, why
from transformer_core.report.sections.scaling import STRATEGIES

PACKAGE = Path(language.__file__).parents[1]
OPTIONS = {"trimmed": "true", "newstyle_gettext": "true"}
PLACES = re.compile(r"%\((\w+)\)s")
TAGS = re.compile(r"</?\w+")


@cache
def texts() -> dict[str, str]:
    """Every text of the templates, with the template that has it."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.html")):
        with path.open("rb") as file:
            for _, _, messages, _ in babel_extract(file, ("gettext", "ngettext", "_"), [], OPTIONS):
                parts = messages if isinstance(messages, tuple) else (messages,)
                said = [text for text in parts if isinstance(text, str)]
                # A plural may be in Korean like its singular.
                known = [*said[:1], *filter(language.translation, said[1:])]
                found |= dict.fromkeys(known, path.name)
    for path in sorted(PACKAGE.rglob("*.py")):
        with path.open("rb") as file:
            for _, _, messages, _ in extract_python(file, ("say", "also"), (), {}):
                text = messages[0] if isinstance(messages, tuple) else messages
                found |= {text: path.name} if isinstance(text, str) else {}
    found |= {section.heading: "contents.py" for section in SECTIONS}
    said = {*STRATEGIES.values(), *TITLES.values()} - {"DDP", "FSDP"}  # names have no translation
    parts = (*profiles._PARTS, *profiles._COMMUNICATION, *why._PARTS, *layers._PHASES)
    said |= {*parts, *profiles.COLOURS, *profiles.WORDS.values(), *memory.WORDS.values()} - {
        "element_wise",
        "graphs",
    }
    said |= {words for words, *_ in (*variants._COSTS.values(), *memory._SOURCES.values())}
    said |= {*WORDS.values(), *memory.MOMENTS.values(), "forward", "backward", "update"}
    said |= {"rank", "rank or device", "state by the formulas", "predicted peak"}
    return found | dict.fromkeys(said, "a module")


def test_every_text_has_its_korean_in_a_sorted_catalog():
    missing = {text: place for text, place in texts().items() if not language.translation(text)}
    assert not missing, "add them to korean.po"
    # A text with a capital serves the same one without.
    once = {text for text in texts() if text == (_capital(text)) or _capital(text) not in texts()}
    assert [*language.korean()] == sorted(once), "no translation is left over"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def test_translations_keep_numbers_and_marks():
    shown = [(part["en"], part["ko"]) for one in captions().values() for part in one.values()]
    for english, korean in [*language.korean().items(), *shown]:
        assert sorted(PLACES.findall(korean)) == sorted(PLACES.findall(english)), english
        assert sorted(TAGS.findall(korean)) == sorted(TAGS.findall(english)), english


ONE_WORD = {
    "baselines?": "기준선",
    "parameters?": "파라미터",
    "machine's|machine": "기계",
    "steps?": "스텝",
}
"""Words that the page has often, and how Korean readers know them again."""
OTHER_STEPS = ("Next step", "The largest global batch")  # sizes


def test_a_concept_has_one_korean_word():
    shown = [(part["en"], part["ko"]) for one in captions().values() for part in one.values()]
    for english, korean in [*language.korean().items(), *shown]:
        for pattern, word in ONE_WORD.items():
            said = re.search(rf"(?i)(?<![\w(])({pattern})(?!\w|\)|\.\w)", english)
            if said and not english.startswith(OTHER_STEPS):
                assert word in korean, english


def test_a_text_without_translation_is_in_english(monkeypatch):
    monkeypatch.setattr(language, "korean", lambda: {"Known": "아는 말"})
    assert language.gettext("Unknown") == "Unknown"
    said = language.gettext("Known")
    assert 'lang="en">Known<' in said
    assert 'lang="ko">아는 말<' in said
    assert language.gettext("known") == str(said).replace("Known", "known")
    assert language.ngettext("Known", "Unknown", 1) == said
    assert language.ngettext("Known", "Unknown", 2) == str(said).replace("Known", "Unknown")


def test_captions_are_in_both_languages(monkeypatch):
    known = {"%(n)s of 10 % %(what)s": "10 % %(what)s %(n)s개", "rows": "행"}
    monkeypatch.setattr(language, "korean", lambda: known)
    text = say("%(n)s of 10 % %(what)s", n=3, what=say("rows")) + " single."
    assert text == "3 of 10 % rows single."
    assert text.korean == "10 % 행 3개 single."
