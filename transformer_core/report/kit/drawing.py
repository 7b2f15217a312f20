"""What the figures share: the drawing with its words, rows per variant, legends."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.said import NOTHING, Said, say

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
    """A figure with room for ``count`` rows, and for ``least`` with what is below them; or one that
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
