"""Shared by the figures: the drawing with its words, rows per variant, legends, ratios."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from schemas.results import Interval
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.language import NOTHING, Said, say
from transformer_core.report.kit.palette import VARIANT

WIDTH = 5.2
"""Inches. Narrow, so that text stays legible when a phone shrinks the figure to its width."""

_LEGEND_CHARACTERS = 56
_ROW = 0.42
_MARGIN = 0.8


@dataclass(frozen=True)
class Drawing:
    """A figure with the words that describe it."""

    figure: Figure
    title: Said
    description: Said


def rows(count: int, least: int = 2) -> tuple[Figure, Axes]:
    """A figure with room for ``count`` rows, and at least ``least``, with its legend; or one that
    says that there is nothing to show."""
    figure = Figure(figsize=(WIDTH, _MARGIN + _ROW * max(count, least)), layout="constrained")
    axes = figure.subplots()
    axes.grid(axis="y", visible=False)
    if not count:
        axes.set_axis_off()
        nothing(figure)
    return figure, axes


def nothing(figure: Figure, text: str = "No variant to show") -> Figure:
    """``figure`` with a sentence instead of axes."""
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure


def legend_below(axes: Axes, title: str | None) -> None:
    """Move the legend of ``axes``, if it has labels, below the figure."""
    # Constrained layout makes room for a legend outside the axes only if the figure owns it.
    legend = axes.get_legend() or axes.legend()
    handles, labels = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
    legend.remove()
    if not labels:
        return
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(
        handles=[handle for handle in handles if handle is not None],
        labels=labels,
        title=title,
        loc="outside lower center",
        ncols=max(1, _LEGEND_CHARACTERS // (max(map(len, labels)) + 4)),
        fontsize=10,
    )


def present(results: StudyResults, frame: pd.DataFrame) -> list[str]:
    """The variants in ``frame``, in the order of the study."""
    shown = set(frame["variant"])
    return [name for name in results.variants if name in shown]


def left_out(results: StudyResults, names: Sequence[str]) -> Said:
    """A sentence on the variants that are not among ``names``, or nothing."""
    missing = [
        f"{result.variant} ({result.status if result.status != 'ok' else 'nothing measured'})"
        for result in results.ordered
        if result.variant not in names
    ]
    return (
        Said(" ", " ") + say("Left out: %(names)s.", names=", ".join(missing))
        if missing
        else NOTHING
    )


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """A name for each row, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


@dataclass(frozen=True)
class RatioRow:
    """A throughput over that of a reference."""

    name: str
    ratio: Interval
    said: str = ""
    """Text beside its number."""
    clear: bool = True
    """Whether it is a difference."""
    color: Any = VARIANT
    """Of its bar in a waterfall."""
    adds: bool = True
    """In a waterfall: added to the rows above it, rather than left out of the whole."""


def ratio_points(shown: Sequence[RatioRow], reference: str, margin: float) -> Figure:
    """A point with its interval for each, against 1 and the ``margin`` within which ratios are the same."""
    figure, axes = rows(len(shown))
    for number, row in enumerate(shown):
        ratio, color = row.ratio, VARIANT if row.clear else svg.INK
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
