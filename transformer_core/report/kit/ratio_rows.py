"""Ratios with their intervals, a row each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from schemas.results import Interval
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import rows
from transformer_core.report.kit.palette import BLUE


@dataclass(frozen=True)
class RatioRow:
    """A throughput over that of a reference."""

    name: str
    ratio: Interval
    said: str = ""
    """What stands beside its number."""
    clear: bool = True
    """Whether it is a difference."""
    color: Any = BLUE
    """Of its bar in a waterfall."""
    adds: bool = True
    """In a waterfall: added to what is above, not left out of the whole."""


def ratio_points(shown: Sequence[RatioRow], reference: str, margin: float) -> Figure:
    """A point with its interval for each, against 1 and the ``margin`` of what is the same."""
    figure, axes = rows(len(shown))
    for number, row in enumerate(shown):
        ratio, color = row.ratio, BLUE if row.clear else svg.INK
        axes.plot([ratio.low, ratio.high], [number, number], color=color)
        axes.plot(ratio.median, number, "o", color=color, mfc=color if row.clear else "none", ms=6)
        _beside(axes, number, f"{ratio.median:.2f}× {row.said}", fontsize=9)
    if shown:
        axes.axvspan(1 / (1 + margin), 1 + margin, color=svg.INK, alpha=0.1, lw=0)
        axes.axvline(1, color=svg.INK, ls="--", lw=1)
        axes.set_yticks(range(len(shown)), [row.name for row in shown])
        axes.set(xlabel=f"throughput over that of {reference}")
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.margins(x=0.06)
        axes.xaxis.set_major_formatter("{x:g}×")
    return figure


def ratio_waterfall(shown: Sequence[RatioRow], reference: str) -> Figure:
    """From 1, each that adds goes on where the one before ended; the others begin at 1."""
    figure, axes = rows(len(shown) + 1 if shown else 0)
    if not shown:
        return figure
    before = 1.0
    for number, row in enumerate(shown, 1):
        _bar(axes, number, before if row.adds else 1.0, row.ratio, row.color)
        if row.adds:
            before = row.ratio.median
    axes.plot(1, 0, "|", color=svg.INK, ms=14, mew=2)
    axes.axvline(1, color=svg.INK, ls="--", lw=1)
    axes.set_yticks(range(len(shown) + 1), [reference, *(row.name for row in shown)])
    axes.set(xlabel=f"throughput over that of {reference}")
    axes.set_ylim(len(shown) + 0.5, -0.5)
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter("{x:g}×")
    return figure


def _bar(axes: Axes, row: int, start: float, ratio: Interval, color: object) -> None:
    axes.barh(row, ratio.median - start, left=start, height=0.55, color=color, alpha=0.55)
    axes.plot([ratio.low, ratio.high], [row, row], color=svg.INK, lw=1.4)
    _beside(axes, row, f"{ratio.median:.2f}×")


def _beside(axes: Axes, row: int, text: str, **options: Any) -> None:
    """Right of the axes."""
    axes.annotate(
        text,
        (1, row),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        **options,
    )
