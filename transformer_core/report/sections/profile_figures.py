"""Figures of profiles: where the time of a step goes, communication, one step, the roofline."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import EngFormatter

from schemas.results import Breakdown, ProfileSummary, Roofline
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import SERIES, colour_of
from transformer_core.report.sections.profiles import measured_roofline, shown, telling
from transformer_core.trace.breakdown.timeline import COLOURS, Span, Timeline, read_timeline
from transformer_core.trace.events.operators import OPERATOR_CLASSES

_COMMUNICATION = {
    "hidden": colour_of("overlap"),
    "exposed": colour_of("communication"),
    "transfer": colour_of("transfer"),
    "waiting": colour_of("waiting"),
}
_MARKERS = dict(zip(OPERATOR_CLASSES, "os^DX", strict=True))


def draw_profile_partition(results: StudyResults) -> Drawing:
    found = shown(results)
    return partitions(found, drawing.left_out(results, list(found)))


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
    axes.set(xlim=(0, None))
    svg.name_axis(axes.xaxis.label, say("communication in a step (ms)"))
    drawing.legend_once(axes, _COMMUNICATION)
    return drawing.captioned("profile_communication", figure)


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
    figure = Figure(figsize=(drawing.WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    for variant, operators, intensity, rate in points:
        axes.plot(
            intensity,
            rate,
            _MARKERS[operators],
            color=SERIES[names.index(variant)],
            ms=8,
            alpha=0.85,
        )
    intensities = [point[2] for point in points]
    roofline = measured_roofline(results)
    if roofline:
        _ceilings(axes, roofline, (min(intensities) / 4, max(intensities) * 8))
    svg.name_axis(axes.xaxis.label, say("FLOPs per byte"))
    svg.name_axis(axes.yaxis.label, say("FLOPs per second"))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    used = {point[1] for point in points}
    for name in (name for name in OPERATOR_CLASSES if name in used):
        axes.plot([], [], _MARKERS[name], color=svg.INK, label=WORDS.get(name, name))
    for number, name in enumerate(names):
        axes.plot([], [], "s", color=SERIES[number], label=name)
    drawing.legend_below(axes, None)
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


def partitions(found: Mapping[str, Breakdown], more: str = "") -> Drawing:
    figure, axes = drawing.rows(list(found), least=6)
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
        axes.set(xlim=(0, None))
        svg.name_axis(axes.xaxis.label, say("wall time of a profiled step (ms)"))
        drawing.legend_once(axes, [*_PARTS, "idle"])
    return drawing.captioned("profile_partition", figure, more)


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
    figure.legend(
        handles=[
            Rectangle((0, 0), 1, 1, color=CLASSES[colour], label=WORDS.get(colour, colour))
            for colour in COLOURS
            if colour in seen
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=10,
    )
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
