"""Turns an interval into a verdict: FASTER, SLOWER, LESS, MORE, SAME or UNDECIDED."""

from collections.abc import Iterable

from schemas.results import Effect, Interval, Quantity, Verdict
from transformer_core.common.percent import percent
from transformer_core.decide.intervals import exact

_WORDS: dict[Quantity, tuple[Verdict, Verdict]] = {
    "throughput": ("FASTER", "SLOWER"),
    "peak_memory": ("MORE", "LESS"),
    "traffic": ("MORE", "LESS"),
}
"""Verdicts for a ratio above 1 and below 1."""
ONE_SESSION = "one session does not show how much processes differ"
"""Why an interval is inconclusive, however narrow."""


def verdict_of(quantity: Quantity, ratio: Interval, margin: float) -> Verdict:
    """SAME if the interval lies within the margin, another verdict if it excludes 1, otherwise
    UNDECIDED."""
    above, below = _WORDS[quantity]
    if 1 / (1 + margin) <= ratio.low and ratio.high <= 1 + margin:
        return "SAME"
    return above if ratio.low > 1 else below if ratio.high < 1 else "UNDECIDED"


def judge(quantity: Quantity, ratio: Interval, margin: float, sessions: int) -> Effect:
    """The effect with its verdict: UNDECIDED after a single session, whatever the interval."""
    verdict, reason = verdict_of(quantity, ratio, margin), ""
    if sessions < 2:
        verdict = "UNDECIDED"
        reason = ONE_SESSION
    elif verdict == "UNDECIDED":
        reason = f"the interval contains 1 and reaches beyond the margin of {percent(margin)}"
    return Effect(quantity=quantity, ratio=ratio, verdict=verdict, reason=reason)


def timed_differently(name: str, differences: Iterable[str]) -> str:
    """Why a ratio of ``name`` shows nothing about its certified training."""
    return f"{name} was timed differently than certified ({'; '.join(differences)})"


def not_measured(quantity: Quantity, reason: str) -> Effect:
    return Effect(quantity=quantity, ratio=None, verdict=None, reason=reason)


def traffic(variant: int, reference: int) -> Effect:
    """The effect on traffic, which is counted: its ratio is exact."""
    more, less = _WORDS["traffic"]
    verdict: Verdict = "SAME" if variant == reference else more if variant > reference else less
    if not reference:
        lacking = "the reference has no" if variant else "neither has any"
        reason = f"{lacking} traffic between processes"
        return Effect(quantity="traffic", ratio=None, verdict=verdict, reason=reason)
    return Effect(quantity="traffic", ratio=exact(variant / reference), verdict=verdict)
