"""The recommended combination, and how it was found."""

import seaborn as sns
from matplotlib.axes import Axes

from schemas.results import SearchResult, Stage
from transformer_core.analysis.files import read_record
from transformer_core.report import svg
from transformer_core.report.drawing import Drawing, rows
from transformer_core.report.inputs import Results


def read_search(results: Results) -> SearchResult:
    """What the search found."""
    return read_record(results.folder / "search.json", SearchResult)


def recommendation(results: Results) -> dict[str, object]:
    """The context of the section."""
    found = read_search(results)
    best = next((s for s in found.waterfall if set(s.parts) == set(found.parts)), None)
    return {"search": found, "best": best if found.parts else None}


def waterfall(results: Results) -> Drawing:
    """From the baseline to the best combination, and without each of its parts."""
    found = read_search(results)
    shown = [
        (f"+ {stage.change}" if adds else f"without {stage.change}", stage, adds)
        for group, adds in ((found.waterfall, True), (found.left_out, False))
        for stage in group
        if stage.effect.ratio
    ]
    figure, axes = rows(len(shown) + 1 if shown else 0)
    if not shown:
        return Drawing(figure, "Techniques together", f"{found.reason.capitalize()}.")
    blue, orange, *_ = sns.color_palette("colorblind")
    before = 1.0
    for row, (_, stage, adds) in enumerate(shown, 1):
        _bar(axes, row, before if adds else 1.0, stage, blue if adds else orange)
        if adds and stage.effect.ratio:
            before = stage.effect.ratio.median
    axes.plot(1, 0, "|", color=svg.INK, ms=14, mew=2)
    axes.axvline(1, color=svg.INK, ls="--", lw=1)
    axes.set_yticks(range(len(shown) + 1), [found.baseline, *(label for label, *_ in shown)])
    axes.set(xlabel=f"throughput over that of {found.baseline}")
    axes.set_ylim(len(shown) + 0.5, -0.5)
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter("{x:g}×")
    return Drawing(
        figure,
        "Techniques together",
        "From the baseline to the best combination, one technique after the other, each bar from "
        "the stage before to the one that it reaches; then the best combination without each of "
        "its techniques, from the baseline. Lines are intervals.",
    )


def _bar(axes: Axes, row: int, start: float, stage: Stage, color: object) -> None:
    ratio = stage.effect.ratio
    assert ratio is not None
    axes.barh(row, ratio.median - start, left=start, height=0.55, color=color, alpha=0.55)
    axes.plot([ratio.low, ratio.high], [row, row], color=svg.INK, lw=1.4)
    axes.annotate(
        f"{ratio.median:.2f}×",
        (1, row),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
    )
