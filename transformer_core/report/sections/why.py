"""Why is it faster? Differences of profiled steps, limits of steps, critical paths."""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from schemas.results import Breakdown, Comparison, PathPart, StepBound
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, captioned, legend_once, rows
from transformer_core.report.kit.palette import colour_of
from transformer_core.report.sections.answer import choose, techniques
from transformer_core.report.sections.profiles import shown, telling
from transformer_core.trace.compare import Difference, difference


class Reason(NamedTuple):
    """A comparison, and how the profiled steps of its two sides differ."""

    comparison: Comparison
    difference: Difference


def reasons(results: StudyResults) -> list[Reason]:
    """Every comparison of which both sides were profiled, in the order of the comparisons."""
    profiles = shown(results)
    return [
        Reason(found, difference(profiles[found.reference], profiles[found.variant]))
        for found in results.all_comparisons
        if found.reference in profiles and found.variant in profiles
    ]


def of_recommendation(results: StudyResults) -> Difference | None:
    """How a profiled step of the recommended combination differs from the baseline's; null if
    either was not profiled, or if a variant is recommended instead."""
    profile, baseline = results.search.profile, shown(results).get(results.study.baseline)
    if profile is None or profile.summary is None or baseline is None:
        return None
    choice, _ = choose(results)
    return difference(baseline, profile) if choice.searched and choice.parts else None


class Bound(NamedTuple):
    """The causes that the steps of a variant wait for."""

    name: str
    parts: StepBound
    delay_ms: float | None  # from launch to begin, median over devices of their medians
    queue: float | None  # launched events that have not begun, likewise

    def share(self, part: str) -> float | None:
        time: int = getattr(self.parts, f"{part}_ns")
        return time / self.parts.window_ns if self.parts.window_ns else None


class Path(NamedTuple):
    """The critical path of one step of one device."""

    name: str
    rank: int
    parts: Sequence[PathPart]
    window_ns: int


def context(results: StudyResults) -> dict[str, Any]:
    """Why the recommendation and every variant differ, what each profiled one waits for, and a few
    critical paths."""
    found = reasons(results)
    recommended = of_recommendation(results)
    profiles = shown(results)
    bounds = [bound for name in profiles if (bound := _bound(name, profiles[name]))]
    of_baseline = [bound for bound in bounds if bound.name == results.study.baseline]
    return {
        "techniques": techniques(results),
        "reasons": found,
        "recommended": recommended,
        "differences": [
            *([recommended] if recommended else []),
            *(reason.difference for reason in found),
        ],
        "best": _best(found, results.study.baseline),
        "bounds": bounds,
        "usual": next(iter([*of_baseline, *bounds]), None),
        "paths": [path for name in telling(results) if (path := _path(name, profiles[name]))],
    }


def _best(found: Sequence[Reason], baseline: str) -> Reason | None:
    """The comparison with the baseline that counts and is fastest; null if none is faster."""
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
        reason.comparison.variant: reason.difference
        for reason in reasons(results)
        if reason.comparison.reference == baseline
    }
    if recommended := of_recommendation(results):
        found = {"recommended": recommended} | found
    figure, axes = rows(list(found))
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
        axes.set_xlabel(f"difference of a profiled step to {baseline} (ms)")
        legend_once(axes, _PARTS)
    return captioned("differences", figure)
