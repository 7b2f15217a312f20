"""Shared by the figures: drawings with captions, rows per variant, legends, ratios."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import seaborn as sns
import yaml
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter

from schemas.config.variants import JOINT
from schemas.results import Interval
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.formats import plain_ratio
from transformer_core.report.kit.language import NOTHING, Said, also, fill, say
from transformer_core.report.kit.palette import SERIES, VARIANT, series_colour
from transformer_core.report.kit.svg import INK, STYLE, name_axis, render

WIDTH = 5.2
"""Inches: narrow enough that text stays legible on a phone."""

_LEGEND_CHARACTERS = 56
_LEGEND_LINE = 0.21
_ROW, _LINE, _FONT = 0.42, 0.25, 11.0
"""Inches of a row and of a line of its name, and points of the letters."""
_CLOSE = (0.2, 0.18, 9.0)
_MANY = 20  # more rows than these are close together
_MARGIN = 0.8
_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1), (5, 1, 1, 1), (2, 1))
_MARKERS = "os^Dv<>P"


@dataclass(frozen=True)
class Drawing:
    figure: Figure
    title: str
    description: str


def to_svg(name: str, draw: Callable[[], Drawing]) -> str:
    """The SVG of a figure, drawn in the style of the report."""
    with sns.axes_style("ticks"), mpl.rc_context(STYLE):
        drawing = draw()
        return render(drawing.figure, name, drawing.title, drawing.description)


@cache
def captions() -> dict[str, dict[str, dict[str, str]]]:
    """Title and text of each figure, by language."""
    file = Path(__file__).with_name("captions.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def title_of(name: str) -> Said:
    title = captions()[name]["title"]
    return fill(title["en"], title["ko"])


def captioned(name: str, figure: Figure, /, *more: str, **values: object) -> Drawing:
    """A figure with its caption, in which ``values`` are filled in, and ``more`` sentences."""
    title, text = (fill(part["en"], part["ko"], **values) for part in captions()[name].values())
    for one in more:
        text += one
    return Drawing(figure, title, text)


def rows(
    names: Sequence[str], least: int = 2, height: float = 1, baseline: str = ""
) -> tuple[Figure, Axes]:
    """A figure with a row per name, the first on top; without names, it says that there is nothing
    to show. It has room for at least ``least`` rows, each ``height`` times as high as usual; many rows
    are close together.

    Compositions leave out the name of the ``baseline``, and other long names take several lines,
    because they narrow the figure.
    """
    labels = [in_lines(short(name, baseline)) for name in names]
    row, line, font = _CLOSE if len(names) > _MANY else (_ROW, _LINE, _FONT)
    each = max([row * height, *(line * (1 + label.count("\n")) for label in labels)])
    room = max(each * len(names), _ROW * least)
    figure = Figure(figsize=(WIDTH, _MARGIN + room), layout="constrained")
    axes = figure.subplots()
    axes.grid(axis="y", visible=False)
    if names:
        axes.set_yticks(range(len(names)), labels, fontsize=font)
        axes.set_ylim(len(names) - 0.5, -0.5)
    else:
        axes.set_axis_off()
        figure.text(0.5, 0.5, NO_VARIANT, ha="center", va="center")
    return figure, axes


def in_lines(name: str) -> str:
    """Breaks a name into lines of at most 28 characters, after underscores."""
    return "\n".join(line.replace("_ ", "_") for line in wrap(name.replace("_", "_ "), 28))


def short(name: str, baseline: str) -> str:
    """The name of a composition without that of its ``baseline``, such as + adamw."""
    start = baseline + JOINT
    return f"+ {name.removeprefix(start)}" if baseline and name.startswith(start) else name


def shortened(names: Iterable[str], baseline: str) -> Said:
    """A sentence on the short names of a figure's rows; empty if none is short."""
    if all(short(name, baseline) == name for name in names):
        return NOTHING
    return also("%(baseline)s with x is written + x.", baseline=baseline)


def chart(height: float) -> tuple[Figure, Axes]:
    """A figure with a single pair of axes, ``height`` inches high."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def panels(
    names: Sequence[str], each: float, heights: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per name, stacked, ``each`` inches high on average."""
    size = (WIDTH, 1.1 + each * len(names))
    figure = Figure(figsize=size, layout="constrained")
    found = figure.subplots(
        len(names), 1, sharex=heights is None, squeeze=False, height_ratios=heights
    )
    for axes, name in zip(found[:, 0], names, strict=True):
        axes.set_title(name, loc="left", fontsize=10)
    return figure, list(found[:, 0])


def empty(name: str, text: Said, shown: str | None = None) -> Drawing:
    """A figure without data: it shows the sentence ``shown``, or else its description ``text``."""
    return Drawing(nothing(shown or text.strip(".")), title_of(name), text)


NO_VARIANT = "No variant to show"


def nothing(text: str = NO_VARIANT, height: float = 1.6) -> Figure:
    """A figure with a sentence instead of axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure


def x_axis(axes: Axes, said: Said, form: Any = None, ticks: int = 0, **options: Any) -> None:
    """Names the horizontal axis, with the format of its numbers, about ``ticks`` of them, and other
    ``options`` of the axes."""
    name_axis(axes.xaxis.label, said)
    if form is not None:
        axes.xaxis.set_major_formatter(form)
    if ticks:
        axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.set(**options)


def percents(decimals: int | None = None) -> PercentFormatter:
    """The format of an axis of shares, such as 20 %; by default as many decimals as its range needs."""
    return PercentFormatter(1, decimals, " %")


def legend(
    figure: Figure, shades: Mapping[str, str], more: Sequence[Artist] = (), **look: Any
) -> None:
    """A legend below the figure: a patch of the shade of each label, then ``more``."""
    patches = [Patch(color=shade, label=label, **look) for label, shade in shades.items()]
    below = figure.legend(
        handles=[*patches, *more], loc="outside lower center", ncols=3, fontsize=10
    )
    in_both_languages(below.get_texts())


def in_both_languages(words: Iterable[Text]) -> None:
    """Shows words, which are not names, in both languages."""
    for word in words:
        name_axis(word, say(word.get_text()))


def legend_below(axes: Axes, title: str = "", words: bool = False) -> None:
    """Move the legend of ``axes``, if it has labels, below the figure. Labels are ``words`` or names."""
    if axes.get_legend() is None and not axes.get_legend_handles_labels()[1]:
        return
    # Constrained layout makes room for a legend outside the axes only if the figure owns it.
    legend = axes.get_legend() or axes.legend(*axes.get_legend_handles_labels())
    handles, labels = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
    legend.remove()
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    size = 10 if len(labels) <= 10 else 7
    columns = max(1, _LEGEND_CHARACTERS * 10 // size // (max(map(len, labels)) + 4))
    # A long legend needs extra height, or it would leave none for the axes.
    more_lines = max(0, -(-len(labels) // columns) - 2)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * size / 10 * more_lines)
    below = figure.legend(
        handles=[handle for handle in handles if handle is not None],
        labels=labels,
        title=title,
        loc="outside lower center",
        ncols=columns,
        fontsize=size,
    )
    in_both_languages([below.get_title(), *(below.get_texts() if words else ())])


def left_out(results: StudyResults, names: Sequence[str]) -> Said:
    """A sentence that lists the variants not among ``names``; empty if there are none."""
    missing = [
        f"{result.variant} ({result.status if result.status != 'ok' else 'nothing measured'})"
        for result in results.ordered
        if result.variant not in names
    ]
    return also("Left out: %(names)s.", names=", ".join(missing)) if missing else NOTHING


def legend_once(axes: Axes, order: Iterable[str]) -> None:
    """A legend below the figure with every label once, in ``order``; labels are words."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    names = [name for name in order if name in once]
    axes.legend([once[name] for name in names], names)
    legend_below(axes, words=True)


def series(number: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number; no two of the first 50 look alike."""
    dashes = _DASHES[(number + number // len(SERIES)) % len(_DASHES)]
    return {"color": series_colour(number), "ls": (0, dashes) if dashes else "-"}


def marker(number: int) -> str:
    """The shape of the points of the series with this number."""
    return _MARKERS[number % len(_MARKERS)]


def stack(
    axes: Axes, row: float, parts: Iterable[tuple[str | None, float, str]], height: float = 0.7
) -> float:
    """Bars end to end from 0: label, width and colour of each. Returns where the last one ends."""
    left = 0.0
    for label, width, color in parts:
        if width:
            axes.barh(row, width, height, left, color=color, lw=0, label=label)
        left += width
    return left


def whisker(axes: Axes, row: float, interval: Interval, color: str = INK, **options: Any) -> None:
    axes.plot([interval.low, interval.high], [row, row], color=color, **options)


def beside(axes: Axes, row: float, text: str, **options: Any) -> None:
    place: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "xytext": (6, 0)}
    place |= {"textcoords": "offset points", "va": "center"}
    shown = axes.annotate(text, (1, row), **place, **options)
    if isinstance(text, Said):
        name_axis(shown, text)


@dataclass(frozen=True)
class RatioRow:
    """A throughput over that of a reference."""

    name: str
    ratio: Interval
    said: str = ""  # text after its number
    clear: bool = True  # whether it is shown to differ from 1
    color: Any = VARIANT  # of its bar in a waterfall
    adds: bool = True
    """In a waterfall: added to the rows above; otherwise left out of the whole."""


def ratio_points(
    shown: Sequence[RatioRow], label: Said, margin: float = 0.0, baseline: str = ""
) -> Figure:
    """A point and an interval per row, against 1 and the ``margin`` within which ratios are the same."""
    figure, axes = rows([row.name for row in shown], baseline=baseline)
    for number, row in enumerate(shown):
        color = row.color if row.clear else INK
        whisker(axes, number, row.ratio, color)
        fill = color if row.clear else "none"
        axes.plot(row.ratio.median, number, "o", color=color, mfc=fill, ms=6)
        beside(axes, number, f"{plain_ratio(row.ratio)} {row.said}", fontsize=9)
    if shown:
        axes.axvspan(1 / (1 + margin), 1 + margin, color=INK, alpha=0.1, lw=0)
        _ratio_axis(axes, label, 0.06)
    return figure


def ratio_waterfall(shown: Sequence[RatioRow], reference: str) -> Figure:
    """A bar per row: one that adds starts where the previous one ended, any other at 1."""
    figure, axes = rows([reference, *(row.name for row in shown)] if shown else [])
    before = 1.0
    for number, row in enumerate(shown, 1):
        start = before if row.adds else 1.0
        axes.barh(number, row.ratio.median - start, 0.55, start, color=row.color, alpha=0.55)
        whisker(axes, number, row.ratio, lw=1.4)
        beside(axes, number, plain_ratio(row.ratio))
        before = row.ratio.median
    if shown:
        axes.plot(1, 0, "|", color=INK, ms=14, mew=2)
        _ratio_axis(axes, over(reference), 0.08)
    return figure


def over(reference: str) -> Said:
    """The label of an axis of throughputs."""
    return say("throughput over that of %(reference)s", reference=reference)


def _ratio_axis(axes: Axes, label: Said, margin: float) -> None:
    axes.axvline(1, color=INK, ls="--", lw=1)
    axes.margins(x=margin)
    x_axis(axes, label, "{x:g}×")
