"""Figures of profiles: where the time of a step goes, communication, one step, the roofline."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from schemas.results import ProfileSummary, Roofline
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import (
    WIDTH,
    Drawing,
    left_out,
    legend_below,
    name_rows,
    nothing,
    rows,
)
from transformer_core.report.kit.palette import (
    ORANGE,
    PURPLE,
    SERIES,
    SKY,
    VERMILION,
)
from transformer_core.report.kit.said import say
from transformer_core.report.sections.profiles.partition_drawing import (
    legend_once,
    partitions,
    summary_of,
)
from transformer_core.report.sections.profiles.read import measured_roofline, shown, telling
from transformer_core.report.sections.profiles.step_drawing import WORDS, timelines
from transformer_core.trace.breakdown.timeline import (
    Timeline,
    read_timeline,
)
from transformer_core.trace.events.operators import OPERATOR_CLASSES

_COMMUNICATION = {"hidden": PURPLE, "exposed": VERMILION, "transfer": SKY, "waiting": ORANGE}
_MARKERS = dict(zip(OPERATOR_CLASSES, "os^DX", strict=True))


def profile_partition(results: StudyResults) -> Drawing:
    """What the devices did in a step, by variant."""
    found = shown(results)
    drawn = partitions(found)
    description = drawn.description + left_out(results, list(found))
    return Drawing(drawn.figure, drawn.title, description)


def profile_communication(results: StudyResults) -> Drawing:
    """How much of the communication is hidden, and how much is waiting."""
    found = {
        name: breakdown
        for name, breakdown in shown(results).items()
        if any(device.collectives for device in breakdown.devices)
    }
    title = say("Communication: hidden, exposed, waiting")
    if not found:
        text = say("No variant communicates.")
        return Drawing(nothing(Figure(figsize=(WIDTH, 1.6)), text.strip(".")), title, text)
    figure, axes = rows(len(found))
    for row, breakdown in enumerate(found.values()):
        steps = sum(max(1, len(device.steps)) for device in breakdown.devices)
        parts = [device.profiled for device in breakdown.devices]
        hidden = sum(part.overlap_ns for part in parts)
        runs = sum(part.communication_ns for part in parts)
        bars = [("hidden", hidden, -0.2), ("exposed", runs - hidden, -0.2)]
        uses = [use for device in breakdown.devices for use in device.collectives]
        if all(use.transfer_ns is not None for use in uses):
            transfer = sum(use.transfer_ns or 0 for use in uses)
            waiting = sum(use.waiting_ns or 0 for use in uses)
            bars += [("transfer", transfer, 0.2), ("waiting", waiting, 0.2)]
        left = {-0.2: 0.0, 0.2: 0.0}
        for name, time, offset in bars:
            width = time / steps / 1e6
            axes.barh(
                row + offset,
                width,
                0.34,
                left[offset],
                color=_COMMUNICATION[name],
                lw=0,
                label=name,
            )
            left[offset] += width
    name_rows(axes, list(found))
    axes.set(xlabel="communication in a step (ms)", xlim=(0, None))
    legend_once(axes, _COMMUNICATION)
    return Drawing(
        figure,
        title,
        say(
            "Upper bar: time in which communication runs, hidden by computation beside it or "
            "exposed. Lower bar: the sum over all collectives, of which transfer is the shortest "
            "on any rank and the rest is waiting for the slowest. Mean over steps and devices. "
            "Variants that do not communicate are left out."
        ),
    )


def profile_timelines(results: StudyResults) -> Drawing:
    """One step of a few variants, drawn from its events."""
    found: dict[str, Timeline] = {}
    for name in telling(results):
        timeline = read_timeline(results.profile_folder(name) / "events.parquet")
        if timeline:
            found[name] = timeline
    return timelines(found)


def operator_roofline(results: StudyResults) -> Drawing:
    """The classes of operators against what the device reaches."""
    found = shown(results)
    names = telling(results)
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    points = _points({variant: summary_of(found[variant]) for variant in names})
    title = say("Operator classes under the roofline")
    if not points:
        text = say("No trace holds the shapes of operators.")
        return Drawing(nothing(figure, text.strip(".")), title, text)
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
    axes.set(xlabel="FLOPs per byte", ylabel="FLOPs per second")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _name_marks_and_colors(axes, {point[1] for point in points}, names)
    return Drawing(
        figure,
        title,
        say(
            "Higher is more arithmetic in a second, further right more of it for each byte: each "
            "class of operators, from the shapes of their inputs. Calls without known shapes are "
            "left out."
        )
        + " "
        + (
            say(
                "The lines are what a process with all threads reaches: the memory bandwidth times "
                "the intensity, up to the rate of its matrix products."
            )
            if roofline
            else say("What this machine reaches was not measured.")
        ),
    )


def _points(summaries: dict[str, ProfileSummary]) -> list[tuple[str, str, float, float]]:
    """Variant, class of operators, FLOPs per byte and FLOPs per second, where all are known."""
    return [
        (variant, use.operator_class, use.intensity, use.flops / (use.counted_ns * 1e-9))
        for variant, summary in summaries.items()
        for use in summary.operators
        if use.intensity and use.flops and use.counted_ns
    ]


def _name_marks_and_colors(axes: Axes, operators: set[str], variants: list[str]) -> None:
    used = [name for name in OPERATOR_CLASSES if name in operators]
    for name in used:
        axes.plot([], [], _MARKERS[name], color=svg.INK, label=WORDS.get(name, name))
    for number, name in enumerate(variants):
        axes.plot([], [], "s", color=SERIES[number], label=name)
    legend_below(axes, None)


def _ceilings(axes: Axes, roofline: Roofline, span: tuple[float, float]) -> None:
    """The measured memory bandwidth and matrix rates, of a process that has all threads."""
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
        # Side by side: formats with one rate would write over one another.
        axes.annotate(name, (span[1] / 3**place, rate), ha="right", va="bottom", fontsize=9)
