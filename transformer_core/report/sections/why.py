"""Why is it faster? Differences between profiled steps, causes of waiting, critical paths."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from schemas.results import Breakdown, Comparison, PathPart, Session, StepBound
from schemas.results.common import BASELINE
from transformer_core.decide.study_results import StudyResults
from transformer_core.measure.session_ratio import step_seconds
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import (
    Drawing,
    captioned,
    legend_once,
    rows,
    shortened,
    x_axis,
)
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import colour_of
from transformer_core.report.sections.answer import choose
from transformer_core.report.sections.profiles import shown, telling
from transformer_core.trace.compare import Change, Difference, difference


class Reason(NamedTuple):
    """A comparison, and how the profiled steps of its two sides differ."""

    comparison: Comparison
    difference: Difference
    timed: Difference | None
    """The difference at the length of timed steps, see :func:`at_timed_length`; null without a
    ratio."""

    @property
    def decided(self) -> bool:
        """Whether the interval of the ratio excludes 1, so that there is a difference to explain."""
        ratio = self.comparison.speedup
        return ratio is not None and not ratio.low <= 1 <= ratio.high


def reasons(results: StudyResults) -> list[Reason]:
    """Every comparison whose sides were both profiled, in the order of the comparisons."""
    profiles = shown(results)
    return [
        Reason(found, profiled, _timed(results, found, profiled))
        for found in results.all_comparisons
        if found.reference in profiles and found.variant in profiles
        for profiled in [difference(profiles[found.reference], profiles[found.variant])]
    ]


def _timed(results: StudyResults, found: Comparison, profiled: Difference) -> Difference | None:
    run = results.turns(found)
    if found.speedup is None or run is None:
        return None
    return at_timed_length(profiled, run.sessions, *found.pair, found.speedup.median)


def at_timed_length(
    found: Difference, sessions: Sequence[Session], variant: str, reference: str, speedup: float
) -> Difference:
    """``found`` with the step and its parts scaled to their length in the timed ``sessions``.

    The profiles give the composition of a step, the turns its length: two profiles recorded minutes
    apart may differ in the other direction than the turns.
    """

    def tokens_per_step(side: str) -> float:
        windows = [window for session in sessions for window in session.windows(side)]
        return sum(window.tokens for window in windows) / sum(window.steps for window in windows)

    seconds = step_seconds(sessions, reference)
    first, second = found.step.first_ms, found.step.second_ms
    if not seconds or not first or not second:
        return found
    before = 1e3 * seconds
    after = before * tokens_per_step(variant) / tokens_per_step(reference) / speedup

    def scaled(change: Change) -> Change:
        one, other = change.first_ms or 0.0, change.second_ms or 0.0
        return Change(change.name, one * before / first, other * after / second)

    parts = sorted(map(scaled, found.parts), key=lambda change: -abs(change.difference_ms))
    return replace(found, step=scaled(found.step), parts=parts)


def of_recommendation(results: StudyResults) -> tuple[Difference, Difference] | None:
    """The difference between a step of the recommended combination and of the baseline, as profiled
    and at the length of timed steps; null if either was not profiled, or a variant is recommended
    instead."""
    profile, baseline = results.search.profile, shown(results).get(results.study.baseline)
    choice, _ = choose(results)
    if profile is None or profile.summary is None or baseline is None or choice.speedup is None:
        return None
    side = results.search.side
    sessions = [
        session
        for session in results.search.sessions
        if {BASELINE, side} <= {one.name for one in session.sides}
    ]
    if not (choice.searched and choice.parts and sessions):
        return None
    found = difference(baseline, profile)
    return found, at_timed_length(found, sessions, side, BASELINE, choice.speedup.median)


class Bound(NamedTuple):
    """The causes of waiting in the steps of a variant."""

    name: str
    parts: StepBound
    delay_ms: float | None  # from launch to start, median over devices of their medians
    queue: float | None  # events launched but not started, likewise

    def share(self, part: str) -> float | None:
        time: int = getattr(self.parts, f"{part}_ns")
        return time / self.parts.window_ns if self.parts.window_ns else None


class Path(NamedTuple):
    """The critical path of one step of one device."""

    name: str
    rank: int
    parts: Sequence[PathPart]
    window_ns: int


def why_context(results: StudyResults) -> dict[str, Any]:
    """Reasons for all differences, causes of waiting, and a few critical paths."""
    found = reasons(results)
    recommended = of_recommendation(results)
    profiles = shown(results)
    bounds = [bound for name in profiles if (bound := _bound(name, profiles[name]))]
    of_baseline = [bound for bound in bounds if bound.name == results.study.baseline]
    return {
        "reasons": found,
        "recommended": recommended[1] if recommended else None,
        "differences": [
            *([recommended[0]] if recommended else []),
            *(reason.difference for reason in found),
        ],
        "best": _best(found, results.study.baseline),
        "bounds": bounds,
        "usual": next(iter([*of_baseline, *bounds]), None),
        "paths": [path for name in telling(results) if (path := _path(name, profiles[name]))],
    }


def _best(found: Sequence[Reason], baseline: str) -> Reason | None:
    """The fastest comparison with the baseline that counts; null if none is faster."""
    faster = [
        (c.speedup.median, reason)
        for reason in found
        if (c := reason.comparison).reference == baseline and c.counts and c.speedup
        if c.verdict == "FASTER"
    ]
    return max(faster, key=lambda item: item[0])[1] if faster else None


def _bound(name: str, breakdown: Breakdown) -> Bound | None:
    if not breakdown.summary or not breakdown.summary.bound:
        return None
    launches = [device.launches for device in breakdown.devices if device.launches]
    delay = median(use.delay_median_ns for use in launches) / 1e6 if launches else None
    queue = median(use.queue_median for use in launches) if launches else None
    return Bound(name, breakdown.summary.bound, delay, queue)


def _path(name: str, breakdown: Breakdown) -> Path | None:
    device = breakdown.devices[0]
    whole = sum(part.time_ns for part in device.critical_path)
    return Path(name, device.rank, device.critical_path[:12], whole) if whole else None


_PARTS = {
    "computation": colour_of("computation"),
    "exposed communication": colour_of("communication"),
    "exposed copies": colour_of("copies"),
    "exposed CUDA graphs": colour_of("graphs"),
    "idle": colour_of("idle"),
}


def draw_differences(results: StudyResults) -> Drawing:
    baseline = results.study.baseline
    found = {
        reason.comparison.variant: reason.timed
        for reason in reasons(results)
        if reason.comparison.reference == baseline and reason.timed
    }
    if recommended := of_recommendation(results):
        found = {"recommended": recommended[1]} | found
    figure, axes = rows(list(found), baseline=baseline)
    for row, one in enumerate(found.values()):
        ends = {True: 0.0, False: 0.0}
        parts = {part.name: part.difference_ms for part in one.parts}
        for name, shade in _PARTS.items():
            change = parts.get(name, 0.0)
            if not change:
                continue
            longer = change > 0
            axes.barh(row, change, 0.7, ends[longer], color=shade, lw=0, label=name)
            ends[longer] += change
        axes.plot(one.step.difference_ms, row, "D", color=svg.INK, ms=5)
    if found:
        axes.axvline(0, color=svg.INK, lw=0.8)
        words = say("difference from %(baseline)s (ms)", baseline=baseline)
        x_axis(axes, words, ticks=5)
        legend_once(axes, _PARTS)
    return captioned("differences", figure, shortened(found, baseline), baseline=baseline)
