"""Texts of the page in English and Korean, one beside the other; the page's style shows one.

Templates and modules are written in English; ko.po beside them holds the Korean, in the format that
translators' tools read, and ``kit/ko.po`` what several folders say. A text that lacks its
translation stands in English.
"""

from functools import cache
from pathlib import Path

from babel.messages.pofile import read_po
from markupsafe import Markup


def catalogs() -> list[Path]:
    """Every catalog of the room: the files of the name ko.po in its folders."""
    return sorted(Path(__file__).resolve().parents[1].rglob("ko.po"))


@cache
def korean() -> dict[str, str]:
    """Translations by English text, of all catalogs."""
    return {text: said for path in catalogs() for text, said in read_catalog(path).items()}


def read_catalog(path: Path) -> dict[str, str]:
    """Translations of one catalog by English text."""
    with path.open("rb") as file:
        return {
            message.id: message.string
            for message in read_po(file, locale="ko")
            if message.id
            and isinstance(message.id, str)
            and message.string
            and isinstance(message.string, str)
        }


def both(english: str, korean_text: str | None) -> Markup:
    """HTML that holds a text in both languages; in English alone where there is no Korean.

    The texts are HTML themselves, of this project and not of a user.
    """
    if not korean_text:
        return Markup(english)
    texts = {"en": english, "ko": korean_text}
    return Markup("".join(f'<span lang="{code}">{text}</span>' for code, text in texts.items()))


def gettext(message: str) -> Markup:
    """``message`` in both languages, for templates."""
    return both(message, korean().get(message))


def ngettext(singular: str, plural: str, count: int) -> Markup:
    """One of two messages, by ``count``, in both languages. Korean has no plural."""
    return gettext(singular if count == 1 else plural)
