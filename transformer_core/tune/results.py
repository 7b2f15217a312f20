"""The result of a change over several sessions: its ratio with an interval, and its worst certificate."""

from collections.abc import Sequence
from math import exp

from schemas.results import Interval, LogRatio, Pair
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.decide.verdicts import verdict_of
from transformer_core.measure.session_ratio import log_ratio_of
from transformer_core.tune.answer import LEFT_OUT, Tried, disturbed
from transformer_core.tune.coordinator import Side
from transformer_core.tune.sessions import AGAIN, OWN, Outcome

LEAST_SESSIONS, GOOD_SESSIONS = 2, 3  # an interval needs two; a third makes it narrow
WORDS = {"same": 0, "undecided": 1, "different": 2}  # words of certificates, the best first


def together(side: Side, outcomes: Sequence[Outcome]) -> Tried:
    """The result of a side over all sessions. Its worst certificate counts."""
    first = outcomes[0].sides[side.name]
    tried = Tried(side.techniques, first.status, first.reason, first.certificate)
    tried.memory = first.memory
    if len(outcomes) < LEAST_SESSIONS and (ratio := over_rounds(side.name, outcomes)):
        tried.screened = exp(ratio.estimate)
    for outcome in outcomes[1:]:
        measured = outcome.sides[side.name]
        if measured.status not in ("ok", LEFT_OUT):
            tried.status, tried.reason = measured.status, measured.reason
        before, now = tried.certificate or {}, measured.certificate or {}
        # If the first session was repeated without dropout, masks may explain a later difference.
        dropped = before.get("dropout") is False
        if before and now and not dropped and WORDS[now["word"]] > WORDS[before["word"]]:
            tried.certificate = now
    return tried


def over_rounds(side: str, outcomes: Sequence[Outcome]) -> LogRatio | None:
    """The ratio of a side to the script over all rounds of these sessions; None if there are none."""
    logs = [each for outcome in outcomes for each in outcome.log_ratios(side)]
    return log_ratio_of(Pair(side, OWN), logs) if logs else None


def set_ratios(
    found: Sequence[Tried],
    outcomes: Sequence[Outcome],
    margin: float,
    earlier: list[list[LogRatio]] | None = None,
    looks: int = 0,
) -> dict[str, float]:
    """Sets the ratios of ``found`` and adds them to ``earlier`` ones, so that all hold at once, with the
    share of error of this look. Returns ratio and interval of the script against itself; empty if
    unknown."""
    ratios = {}
    for name in [t.name for t in found if t.status == "ok"] + [AGAIN]:
        logs = [outcome.log_ratios(name) for outcome in outcomes]
        ratio = [log_ratio_of(Pair(name, OWN), each) for each in logs if len(each) > 1]
        if len(ratio) >= LEAST_SESSIONS:
            ratios[name] = ratio
    if not ratios:
        return {}
    earlier = [] if earlier is None else earlier
    whole = [*ratios.values(), *earlier]
    intervals = dict(zip(ratios, simultaneous_ratios(whole, [looks] * len(whole)), strict=False))
    earlier += ratios.values()
    noise = intervals.get(AGAIN)
    for tried in found:
        if interval := intervals.get(tried.name):
            tried.ratio, tried.low, tried.high = interval.median, interval.low, interval.high
            tried.verdict = verdict_beside(noise, interval, margin)
    return {"ratio": noise.median, "low": noise.low, "high": noise.high} if noise else {}


def verdict_beside(noise: Interval | None, ratio: Interval, margin: float) -> str:
    """The verdict of a ratio. It is UNDECIDED if ``noise``, the ratio of the script to itself in the same
    sessions, excludes 1: then something disturbed them, and their intervals are too narrow."""
    if noise is not None and disturbed(noise.low, noise.high):
        return "UNDECIDED"
    return verdict_of("throughput", ratio, margin)
