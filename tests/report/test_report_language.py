"""Every text of the templates is in both languages."""

import re
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from jinja2.ext import babel_extract

from transformer_core.report import language
from transformer_core.report.sections import SECTIONS

TEMPLATES = Path(language.__file__).parent / "templates"
OPTIONS = {"trimmed": "true", "newstyle_gettext": "true"}
PLACES = re.compile(r"%\((\w+)\)s")
TAGS = re.compile(r"</?\w+")


def texts() -> dict[str, str]:
    """Every text of the templates, with the template that has it."""
    found: dict[str, str] = {}
    for path in sorted(TEMPLATES.rglob("*.html")):
        with path.open("rb") as file:
            for _, _, messages, _ in babel_extract(file, ("gettext", "ngettext"), [], OPTIONS):
                parts = messages if isinstance(messages, tuple) else (messages,)
                found |= {text: path.name for text in parts if isinstance(text, str)}
    return found | {section.heading: "sections.py" for section in SECTIONS}


def test_every_text_has_its_korean() -> None:
    missing = {text: place for text, place in texts().items() if text not in language.korean()}
    assert not missing, f"add to {language.CATALOG}"


@pytest.mark.parametrize("english", sorted(language.korean()), ids=lambda text: text[:40])
def test_a_translation_keeps_numbers_and_marks(english: str) -> None:
    korean = language.korean()[english]
    assert sorted(PLACES.findall(korean)) == sorted(PLACES.findall(english))
    assert sorted(TAGS.findall(korean)) == sorted(TAGS.findall(english))


def test_catalog_is_sorted_and_each_text_is_there_once() -> None:
    with language.CATALOG.open("rb") as file:
        keys = [message.id for message in read_po(file, locale="ko") if message.id]
    assert keys == sorted(set(keys))


def test_a_text_without_translation_stands_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "korean", lambda: {"Known": "아는 말"})
    assert language.gettext("Unknown") == "Unknown"
    said = language.gettext("Known")
    assert 'lang="en">Known<' in said
    assert 'lang="ko">아는 말<' in said
    assert language.ngettext("Known", "Unknown", 1) == said
