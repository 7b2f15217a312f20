"""What the timed windows of a run say."""

from collections.abc import Iterable, Sequence
from typing import Literal

from schemas.results import Repeat, Window


def rates(repeats: Iterable[Repeat], count: Literal["tokens", "pairs"]) -> list[list[float]]:
    """Non-padding tokens or sentence pairs per second of every timed window, by repeat."""
    return [
        [getattr(window, count) / window.seconds for window in repeat.windows] for repeat in repeats
    ]


def padding_share(windows: Sequence[Window]) -> float | None:
    """Share of padding among the tokens of the windows, 0 to 1; null without a token."""
    padded = sum(window.padded_tokens for window in windows)
    return 1 - sum(window.tokens for window in windows) / padded if padded else None


def input_wait_share(windows: Sequence[Window]) -> float | None:
    """Share of the windows' time spent waiting for input, 0 to 1; null without a window."""
    seconds = sum(window.seconds for window in windows)
    return sum(window.input_wait_seconds for window in windows) / seconds if seconds else None
