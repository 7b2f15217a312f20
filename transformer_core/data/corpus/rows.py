"""Rows of a corpus (sentence pairs and invalid lines), and the error for an unusable corpus."""

from pathlib import Path
from typing import NamedTuple

from schemas.errors import Refusal


class Pair(NamedTuple):
    """A sentence pair of the corpus, unchanged."""

    line: int
    source: str
    target: str


class Invalid(NamedTuple):
    """A line that holds no sentence pair."""

    line: int
    file: str
    text: str
    message: str


Row = Pair | Invalid

EXAMPLES = 10  # left-out pairs that a report or a manifest shows
NOT_UTF8 = "is not UTF-8"


def not_utf8(error: UnicodeDecodeError) -> str:
    """Explains which byte of a line is not UTF-8."""
    return f"{NOT_UTF8} (byte {error.start + 1} of the text: {error.reason})"


class CorpusError(Refusal):
    """Raised for an unusable corpus: gives the place of the fault, the value found and a remedy."""

    def __init__(
        self,
        message: str,
        *,
        file: str | Path,
        remedy: str,
        line: int | None = None,
        value: str | None = None,
    ) -> None:
        self.file = str(file)
        self.line = line
        self.remedy = remedy
        text = f"{where(self.file, line)}: {message}"
        if value is not None:
            text += f"\n    value:  {snippet(value)!r}"
        super().__init__(f"{text}\n    remedy: {remedy}")


def where(file: str, line: int | None) -> str:
    """``file:line``, or the file alone if the line is unknown."""
    return file if line is None else f"{file}:{line}"


def snippet(text: str, limit: int = 80) -> str:
    """The beginning of ``text``, at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
