"""Texts of the page in English and Korean; the page holds both, and its style shows one.

Templates and modules are written in English; ``korean.po``, in the format of translators' tools, holds
the Korean. A text without a translation appears in English.
"""

import re
from functools import cache
from pathlib import Path

from babel.messages.pofile import read_po
from markupsafe import Markup

CATALOG = Path(__file__).parents[1] / "korean.po"


@cache
def korean() -> dict[str, str]:
    """Translations by English text."""
    with CATALOG.open("rb") as file:
        return {
            message.id: message.string
            for message in read_po(file, locale="ko")
            if isinstance(message.id, str) and isinstance(message.string, str)
            if message.id and message.string
        }


def translation(message: str) -> str | None:
    """The Korean of ``message``; that of a text with a capital letter is also that without it."""
    return korean().get(message) or korean().get(message[:1].upper() + message[1:])


def both(english: str, korean_text: str | None) -> Markup:
    """HTML with a text in both languages, or in English alone if there is no Korean. The texts are
    trusted HTML."""
    if not korean_text:
        return Markup(english)
    texts = {"en": english, "ko": korean_text}
    return Markup("".join(f'<span lang="{code}">{text}</span>' for code, text in texts.items()))


def gettext(message: str) -> Markup:
    """``message`` in both languages, for templates."""
    return both(message, translation(message))


def ngettext(singular: str, plural: str, count: int) -> Markup:
    """The message for ``count``, in both languages. Korean has no plural: most are like the singular."""
    message = singular if count == 1 else plural
    return both(message, translation(message) or translation(singular))


_PLACE = re.compile(r"%\((\w+)\)s")


class Said(str):
    """An English text with its Korean, for captions; joining texts joins both."""

    korean: str

    def __new__(cls, english: str, korean: str) -> "Said":
        made = super().__new__(cls, english)
        made.korean = korean
        return made

    def __add__(self, other: str) -> "Said":
        return Said(str(self) + str(other), self.korean + in_korean(other))

    def strip(self, chars: str | None = None, /) -> "Said":
        """Without blanks at either end."""
        return Said(str(self).strip(chars), self.korean.strip(chars))


NOTHING = Said("", "")


def say(message: str, **values: object) -> Said:
    """``message`` in both languages, with ``values`` at its places ``%(name)s``."""
    return fill(message, translation(message) or message, **values)


def also(message: str, **values: object) -> Said:
    """A sentence that follows others."""
    return Said(" ", " ") + say(message, **values)


def fill(english: str, korean_text: str, /, **values: object) -> Said:
    """A text in both languages, with ``values`` at its places."""
    return Said(
        _PLACE.sub(lambda place: str(values[place[1]]), english),
        _PLACE.sub(lambda place: in_korean(values[place[1]]), korean_text),
    )


def in_korean(text: object) -> str:
    """The Korean of a text, or the text itself if it has none."""
    return text.korean if isinstance(text, Said) else str(text)
