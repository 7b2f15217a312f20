"""Rows of a corpus: sentence pairs, and lines that hold none."""

from typing import NamedTuple


class Pair(NamedTuple):
    """A sentence pair as it stands in the corpus."""

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


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong with a line whose bytes are not text."""
    return f"is not UTF-8 (byte {error.start + 1} of the text: {error.reason})"
