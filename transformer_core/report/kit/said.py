"""Words of figures in both languages."""

import re

from transformer_core.report.kit import language

_PLACE = re.compile(r"%\((\w+)\)s")


class Said(str):
    """An English text with its Korean, for captions; both stay together when texts are joined."""

    korean: str

    def __new__(cls, english: str, korean: str) -> "Said":
        """The text in both languages."""
        made = super().__new__(cls, english)
        made.korean = korean
        return made

    def __add__(self, other: str) -> "Said":
        """This text and another one."""
        return Said(str(self) + str(other), self.korean + in_korean(other))

    def strip(self, chars: str | None = None, /) -> "Said":
        """Without blanks at either end."""
        return Said(str(self).strip(chars), self.korean.strip(chars))


NOTHING = Said("", "")


def say(message: str, **values: object) -> Said:
    """``message`` in both languages, with ``values`` at its places ``%(name)s``.

    The Korean is in a ko.po, as that of the templates is.
    """
    english = _PLACE.sub(lambda place: str(values[place[1]]), message)
    korean = language.korean().get(message, message)
    return Said(english, _PLACE.sub(lambda place: in_korean(values[place[1]]), korean))


def in_korean(text: object) -> str:
    """The Korean of a text that has one; else the text."""
    return text.korean if isinstance(text, Said) else str(text)
