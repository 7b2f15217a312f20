"""Profiles by variant: where the time of a step goes, operators, collectives, one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import EngFormatter

from schemas.results import Breakdown, ProfileSummary, Roofline, ShapeUse
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.language import also, say
from transformer_core.report.kit.palette import colour_of, series_colour
from transformer_core.trace.breakdown.summary import roofline_share
from transformer_core.trace.breakdown.timeline import COLOURS, Span, Timeline, read_timeline
from transformer_core.trace.events.operators import OPERATOR_CLASSES


@dataclass(frozen=True)
class PerStep:
    """Turns sums over the steps of all devices into means per step of a device."""

    name: str
    steps: int  # steps of all devices

    def per_step(self, count: float | None) -> float | None:
        return None if count is None else count / self.steps

    def milliseconds(self, nanoseconds: int | None) -> float | None:
        return None if nanoseconds is None else nanoseconds / 1e6 / self.steps

    def billions(self, count: int | None) -> float | None:
        return None if count is None else count / 1e9 / self.steps

    @staticmethod
    def rate(count: int | None, nanoseconds: int) -> float | None:
        """Billions per second."""
        return count / nanoseconds if count is not None and nanoseconds else None


@dataclass(frozen=True)
class Profile(PerStep):
    breakdown: Breakdown
    communication_ms: float | None
    """Milliseconds of a step during which communication runs; null without communication."""
    ddp_communication_ms: float | None
    """The same by DistributedDataParallel's own timers; null without them."""
    viewer_files: list[str]  # files for a viewer, relative to the page

    @property
    def summary(self) -> ProfileSummary:
        return summary_of(self.breakdown)


def profiles_context(results: StudyResults) -> dict[str, Any]:
    """The profiles, the reasons for missing ones, and the few that are shown in detail."""
    profiles = {
        name: _profile(results, name, breakdown) for name, breakdown in results.breakdowns.items()
    }
    ok = {name: profile for name, profile in profiles.items() if profile.breakdown.devices}
    reasons = {profile.breakdown.profiler_reason for profile in profiles.values()}
    reference = ok.get(results.study.baseline)
    exposed = {p.name: p.summary.exposed_communication or 0.0 for p in ok.values()}
    most = max(exposed, key=lambda name: exposed[name], default=None)
    return {
        "profiles": ok,
        "usual": reference or next(iter(ok.values()), None),
        "talkative": ok[most] if most is not None and exposed[most] else None,
        "brought": list(results.study.traces),
        "stragglers": [p for p in ok.values() if len(p.summary.stragglers) > 1],
        "without": [p.breakdown for p in profiles.values() if not p.breakdown.devices],
        "detailed": [ok[name] for name in telling(results)],
        "profiler_reasons": sorted(reason for reason in reasons if reason),
        "noted": [p for p in ok.values() if p.breakdown.notes],
    }


def _profile(results: StudyResults, name: str, breakdown: Breakdown) -> Profile:
    capture = results.capture(name)
    steps = breakdown.device_steps
    talks = any(device.collectives for device in breakdown.devices)
    runs = sum(device.profiled.communication_ns for device in breakdown.devices)
    times = (
        [ddp.communication_seconds for rank in capture.ranks for ddp in rank.ddp] if capture else []
    )
    return Profile(
        name=name,
        breakdown=breakdown,
        steps=steps,
        communication_ms=runs / 1e6 / steps if talks else None,
        ddp_communication_ms=1e3 * sum(times) / len(times) if times else None,
        viewer_files=[f"profiles/{name}/{file}" for file in breakdown.viewer_files],
    )


_TELLING = 4
_USUAL: tuple[tuple[str, bool], ...] = (("ddp", False), ("ddp", True), ("fsdp", False))
"""Kind of parallel strategy, and whether gradients accumulate."""


def shown(results: StudyResults) -> dict[str, Breakdown]:
    return {name: found for name, found in results.breakdowns.items() if found.devices}


def telling(results: StudyResults) -> list[str]:
    """The few variants that are shown in detail: the baseline, the first one for each way of dividing
    and synchronising the work, the usual ways first, and all of the user's own traces."""
    seen: dict[tuple[str, bool], str] = {}
    found = list(shown(results))
    names = [name for name in found if name in results.specs]
    for name in sorted(names, key=lambda name: name != results.study.baseline):
        spec = results.specs[name]
        way = (spec.parallel.kind, spec.training.accumulation.micro_batches > 1)
        seen.setdefault(way, name)
    baseline, *others = seen or [None]
    ways = sorted(others, key=lambda way: _USUAL.index(way) if way in _USUAL else len(_USUAL))
    variants = [seen[way] for way in [baseline, *ways] if way][:_TELLING]
    return variants + [name for name in found if name in results.study.traces]


def measured_roofline(results: StudyResults) -> Roofline | None:
    return results.roofline if results.roofline.status == "ok" else None


def with_roofline_shares(
    results: StudyResults, name: str, shapes: Sequence[ShapeUse]
) -> list[tuple[ShapeUse, float | None]]:
    """Operators by shape with their shares of the roofline, which is this machine's: users' traces
    have none."""
    roofline = measured_roofline(results) if name in results.specs else None
    return [(use, roofline_share(use, roofline) if roofline else None) for use in shapes]


_COMMUNICATION = {
    "hidden": colour_of("overlap"),
    "exposed": colour_of("communication"),
    "transfer": colour_of("transfer"),
    "waiting": colour_of("waiting"),
}
_MARKERS = dict(zip(OPERATOR_CLASSES, "os^DX", strict=True))


def draw_profile_partition(results: StudyResults) -> Drawing:
    found = shown(results)
    idle = also(
        "“What do steps wait for?” divides it among the input, the host and unknown causes."
    )
    left_out = drawing.left_out(results, list(found))
    return partitions(found, idle + left_out, results.study.baseline)


def draw_profile_communication(results: StudyResults) -> Drawing:
    found = {
        name: breakdown
        for name, breakdown in shown(results).items()
        if any(device.collectives for device in breakdown.devices)
    }
    if not found:
        return drawing.empty("profile_communication", say("No variant communicates."))
    figure, axes = drawing.rows(list(found), baseline=results.study.baseline)
    for row, breakdown in enumerate(found.values()):
        steps = breakdown.device_steps
        parts = [device.profiled for device in breakdown.devices]
        hidden = sum(part.overlap_ns for part in parts)
        runs = sum(part.communication_ns for part in parts)
        bars = [(-0.2, {"hidden": hidden, "exposed": runs - hidden})]
        uses = [use for device in breakdown.devices for use in device.collectives]
        if all(use.transfer_ns is not None for use in uses):
            transfer = sum(use.transfer_ns or 0 for use in uses)
            waiting = sum(use.waiting_ns or 0 for use in uses)
            bars += [(0.2, {"transfer": transfer, "waiting": waiting})]
        for offset, times in bars:
            parts_ms = [(n, time / steps / 1e6, _COMMUNICATION[n]) for n, time in times.items()]
            drawing.stack(axes, row + offset, parts_ms, 0.34)
    drawing.x_axis(axes, say("communication in a step (ms)"), xlim=(0, None))
    drawing.legend_once(axes, _COMMUNICATION)
    return drawing.captioned(
        "profile_communication", figure, drawing.shortened(found, results.study.baseline)
    )


def draw_profile_timelines(results: StudyResults) -> Drawing:
    found: dict[str, Timeline] = {}
    for name in telling(results):
        timeline = read_timeline(results.profile_folder(name) / "events.parquet")
        if timeline:
            found[name] = timeline
    return timelines(found)


def draw_operator_roofline(results: StudyResults) -> Drawing:
    found = shown(results)
    names = telling(results)
    # Variant, operator class, FLOPs per byte and FLOPs per second, if all are known.
    points = [
        (variant, use.operator_class, use.intensity, use.flops / (use.counted_ns * 1e-9))
        for variant in names
        for use in summary_of(found[variant]).operators
        if use.intensity and use.flops and use.counted_ns
    ]
    if not points:
        return drawing.empty("operator_roofline", say("No trace records operator shapes."))
    figure, axes = drawing.chart(4.2)
    axes.set(xscale="log", yscale="log")
    for variant, operators, intensity, rate in points:
        axes.plot(
            intensity,
            rate,
            _MARKERS[operators],
            color=series_colour(names.index(variant)),
            ms=8,
            alpha=0.85,
        )
    intensities = [point[2] for point in points]
    roofline = measured_roofline(results)
    if roofline:
        _ceilings(axes, roofline, (min(intensities) / 4, max(intensities) * 8))
    drawing.x_axis(axes, say("FLOPs per byte"), "{x:g}")
    svg.name_axis(axes.yaxis.label, say("FLOPs per second"))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    used = {point[1] for point in points}
    for name in (name for name in OPERATOR_CLASSES if name in used):
        axes.plot([], [], _MARKERS[name], color=svg.INK, label=WORDS.get(name, name))
    for number, name in enumerate(names):
        axes.plot([], [], "s", color=series_colour(number), label=name)
    drawing.legend_below(axes)
    return drawing.captioned(
        "operator_roofline",
        figure,
        " ",
        say(
            "The lines show the limit of a process with all threads: the memory bandwidth times the "
            "intensity, up to its matrix rate."
        )
        if roofline
        else say("The limits of this machine were not measured."),
    )


def _ceilings(axes: Axes, roofline: Roofline, span: tuple[float, float]) -> None:
    """The measured memory bandwidth and matrix rates of a process with all threads."""
    bandwidth = max((m.bytes_per_second for m in roofline.memory), default=None)
    if bandwidth is None:
        return
    rates = {
        rate.format: rate.flops_per_second
        for rate in sorted(roofline.matrix, key=lambda rate: rate.threads or 0)
        if rate.flops_per_second
    }
    intensity = np.geomspace(*span, 50)
    for place, (name, rate) in enumerate(rates.items()):
        axes.plot(intensity, np.minimum(intensity * bandwidth, rate), color=svg.INK, lw=1, ls="--")
        # Side by side, because labels of formats with the same rate would overlap.
        axes.annotate(name, (span[1] / 3**place, rate), ha="right", va="bottom", fontsize=9)


_PARTS = {
    "computation": colour_of("computation"),
    "computation and communication": colour_of("overlap"),
    "exposed communication": colour_of("communication"),
    "exposed copies": colour_of("copies"),
    "CUDA graphs": colour_of("graphs"),
}


def partitions(found: Mapping[str, Breakdown], more: str = "", baseline: str = "") -> Drawing:
    figure, axes = drawing.rows(list(found), least=6, baseline=baseline)
    for row, breakdown in enumerate(found.values()):
        summary = summary_of(breakdown)
        overlap = summary.overlap or 0.0
        shares = (
            (summary.compute or 0.0) - overlap,
            overlap,
            summary.exposed_communication or 0.0,
            summary.exposed_copies or 0.0,
            summary.exposed_graphs or 0.0,
        )
        times = [share * summary.step_seconds * 1e3 for share in shares]
        left = drawing.stack(axes, row, zip(_PARTS, times, _PARTS.values(), strict=True))
        idle = summary.step_seconds * 1e3 - left
        if idle > 0:
            axes.barh(row, idle, 0.7, left, fc="none", ec=svg.INK, lw=0.8, label="idle")
    if found:
        drawing.x_axis(axes, say("wall time of a profiled step (ms)"), xlim=(0, None))
        drawing.legend_once(axes, [*_PARTS, "idle"])
    return drawing.captioned("profile_partition", figure, more, drawing.shortened(found, baseline))


def summary_of(breakdown: Breakdown) -> ProfileSummary:
    """The summary of a breakdown that has devices."""
    assert breakdown.summary is not None
    return breakdown.summary


CLASSES = {name: colour_of(name) for name in COLOURS}  # colours of the activities of a device
WORDS = {"element_wise": "element-wise", "graphs": "CUDA graphs"}
_LETTERS = {"data": "D", "forward": "F", "loss": "L", "backward": "B", "optimizer": "O"}


def timelines(found: Mapping[str, Timeline]) -> Drawing:
    heights = [len(t.lanes) + len(t.phases) + 1.6 for t in found.values()]
    if not found:
        return drawing.empty(
            "profile_timelines", say("No profile marks training steps."), drawing.NO_VARIANT
        )
    figure, shown = drawing.panels(list(found), 0.2 * sum(heights) / len(heights), heights)
    for axes, timeline in zip(shown, found.values(), strict=True):
        _draw_step(axes, timeline)
    svg.name_axis(shown[-1].xaxis.label, say("milliseconds since the start of the step"))
    seen = {colour for t in found.values() for lane in t.lanes for colour in lane.spans}
    shades = {WORDS.get(name, name): CLASSES[name] for name in COLOURS if name in seen}
    drawing.legend(figure, shades)
    return drawing.captioned("profile_timelines", figure, names=", ".join(found))


def _draw_step(axes: Axes, timeline: Timeline) -> None:
    """One variant: for each rank a strip of phases and a row per lane."""
    ticks: list[tuple[float, str]] = []
    row = 0
    for rank, strip in timeline.phases.items():
        _draw_strip(axes, row, strip, timeline.window_ns)
        ticks.append((row, f"rank {rank}"))
        row += 1
        for lane in (lane for lane in timeline.lanes if lane.rank == rank):
            for colour, spans in lane.spans.items():
                axes.add_patch(PathPatch(_boxes(spans, row, 0.42), fc=CLASSES[colour], lw=0))
            ticks.append((row, lane.label))
            row += 1
    axes.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks], fontsize=9)
    axes.set(xlim=(0, timeline.window_ns / 1e6), ylim=(row - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _draw_strip(
    axes: Axes, row: int, strip: Sequence[tuple[str, int, int]], window_ns: int
) -> None:
    axes.add_patch(
        PathPatch(
            _boxes([(t0, t1) for _, t0, t1 in strip], row, 0.32), fc="none", ec=svg.INK, lw=0.5
        )
    )
    for phase, t0, t1 in strip:
        if t1 - t0 > window_ns / 40:  # wide enough for a letter
            middle = (t0 + t1) / 2e6
            axes.text(middle, row, _LETTERS[phase], ha="center", va="center_baseline", fontsize=8)


def _boxes(spans: Sequence[Span], row: int, half: float) -> Path:
    """All spans as one path: one SVG element instead of hundreds."""
    corners = [
        (x / 1e6, row + y)
        for t0, t1 in spans
        for x, y in ((t0, -half), (t1, -half), (t1, half), (t0, half), (t0, -half))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(spans)
    return Path(np.array(corners).reshape(-1, 2), codes)
