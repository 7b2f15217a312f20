"""The figure of the recommended combination."""

from matplotlib.axes import Axes

from schemas.results import Stage
from transformer_core.analysis.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, rows
from transformer_core.report.kit.palette import BLUE, GREY, ORANGE
from transformer_core.report.kit.said import say


def waterfall(results: StudyResults) -> Drawing:
    """From the baseline to the best combination, beyond it, and without each of its parts."""
    found = results.search
    groups = (
        (found.waterfall, "+", BLUE),
        (found.beyond, "+", GREY),
        (found.left_out, "without", ORANGE),
    )
    shown = [
        (f"{word} {stage.change}{' *' if stage.uncertified else ''}", stage, color)
        for stages, word, color in groups
        for stage in stages
        if stage.effect.ratio
    ]
    figure, axes = rows(len(shown) + 1 if shown else 0)
    if not shown:
        return Drawing(
            figure,
            say("Techniques together"),
            say("Nothing to add up: %(reason)s.", reason=found.reason),
        )
    before = 1.0
    for row, (_, stage, color) in enumerate(shown, 1):
        adds = color != ORANGE
        _bar(axes, row, before if adds else 1.0, stage, color)
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
        say("Techniques together"),
        say(
            "Read it from top to bottom: each technique is added to those above it, and its bar "
            "leads from the speed before to the speed with it. What is grey was measured too, "
            "seems to cost, and is not recommended. Below, in orange, is the best combination "
            "without each of its techniques. Black lines are intervals. An asterisk marks a stage "
            "with kernels that no certificate names: it shows the way, and does not count."
        ),
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
