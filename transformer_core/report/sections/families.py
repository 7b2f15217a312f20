"""Sweeps of one number: throughput and costs of the variants of a family."""

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from schemas.results import FamilyCurve, FamilyPoint, Interval
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import WIDTH, Drawing, captioned, legend_below, nothing
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import SERIES, VARIANT


def context(results: StudyResults) -> dict[str, Any]:
    """The curves, and the families of which the study runs too few members for one."""
    return {
        "curves": [curve for curve in results.curves if curve.points],
        "knees": [curve for curve in results.curves if curve.points and curve.knee is not None],
        "without": [curve for curve in results.curves if not curve.points],
    }


_COLUMNS = 2
_PANEL = 2.1
_LABEL_CHARACTERS = 34
Panel = Callable[[Axes, FamilyCurve], None]


def draw_families(results: StudyResults) -> Drawing:
    shown = [curve for curve in results.curves if curve.best is not None]
    figure = _panels(shown, _throughput)
    if shown:
        svg.name_axis(figure.supylabel("", fontsize=11), say("throughput over the reference"))
    notes = "".join(f" {curve.family}: {curve.note}." for curve in shown)
    return captioned("families", figure, notes)


def draw_family_costs(results: StudyResults) -> Drawing:
    shown = [
        curve
        for curve in results.curves
        if any(_sizes(curve.points, quantity) for quantity in _COSTS)
    ]
    figure = _panels(shown, _costs)
    if shown:
        svg.name_axis(figure.supylabel("", fontsize=11), say("over the reference"))
        legend_below(figure.axes[0], None)
    return captioned("family_costs", figure)


_COSTS = {"peak_memory": ("peak memory", "o", "-"), "traffic": ("bytes sent per step", "s", ":")}
"""Label, marker and line by quantity."""


def _panels(curves: Sequence[FamilyCurve], draw: Panel) -> Figure:
    """A panel per curve, or a sentence if there is none."""
    if not curves:
        return nothing(Figure(figsize=(WIDTH, 1.6)))
    columns = min(_COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(WIDTH, 0.6 + _PANEL * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, curve in zip(grid, curves, strict=False):
        axes.axhline(1, color=svg.INK, ls="--", lw=0.8)
        draw(axes, curve)
        _values(axes, curve)
    for axes in grid[len(curves) :]:
        axes.set_visible(False)
    return figure


def _throughput(axes: Axes, curve: FamilyCurve) -> None:
    counted = [(p.value, p.throughput.median) for p in curve.points if p.counts and p.throughput]
    axes.plot(*zip(*counted, strict=True), color=VARIANT, lw=1.2)
    for point in curve.points:
        if point.throughput is None:
            continue
        color = VARIANT if point.counts else svg.INK
        _whisker(axes, point.value, point.throughput, color, "o", filled=point.counts)
    if curve.knee is not None:
        axes.axvline(curve.knee, color=svg.INK, ls=":", lw=1.2)
    axes.yaxis.set_major_formatter("{x:g}×")


def _costs(axes: Axes, curve: FamilyCurve) -> None:
    colors = SERIES
    for color, (quantity, (label, marker, line)) in zip(colors, _COSTS.items(), strict=False):
        sizes = _sizes(curve.points, quantity)
        medians = [size.median for _, size in sizes]
        places = [value for value, _ in sizes]
        axes.plot(places, medians, color=color, ls=line, lw=1.2, marker=marker, ms=5, label=label)
        for value, size in sizes:
            _whisker(axes, value, size, color, marker)
    axes.yaxis.set_major_formatter("{x:g}×")


def _sizes(points: Sequence[FamilyPoint], quantity: str) -> list[tuple[float, Interval]]:
    sizes = [(point.value, getattr(point, quantity)) for point in points]
    return [(value, size) for value, size in sizes if size is not None]


def _whisker(
    axes: Axes, x: float, size: Interval, color: object, marker: str, *, filled: bool = True
) -> None:
    axes.plot([x, x], [size.low, size.high], color=color, lw=1.4)
    axes.plot(x, size.median, marker, color=color, mfc=color if filled else "none", ms=5)


def _values(axes: Axes, curve: FamilyCurve) -> None:
    values = [point.value for point in curve.points]
    axes.set_xscale(curve.scale)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in values]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.1, y=0.15)
    axes.set_title(curve.family, fontsize=10)
    unit = f" ({curve.unit})" if curve.unit else ""
    axes.set_xlabel(fill(f"{curve.title.lower()}{unit}", _LABEL_CHARACTERS), fontsize=9)
    axes.tick_params(labelsize=9)
