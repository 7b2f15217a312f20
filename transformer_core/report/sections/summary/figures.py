"""The figure of the speed-ups."""

from transformer_core.analysis.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, left_out, rows
from transformer_core.report.kit.palette import BLUE
from transformer_core.report.kit.said import say


def speedup(results: StudyResults) -> Drawing:
    """The ratios with their intervals, against 1 and the margin of what is the same."""
    baseline, margin = results.study.baseline, results.study.comparison.margin
    shown = [comparison for comparison in results.comparisons.values() if comparison.speedup]
    figure, axes = rows(len(shown))
    for row, comparison in enumerate(shown):
        ratio = comparison.speedup
        assert ratio is not None
        clear = comparison.counts and comparison.verdict in ("FASTER", "SLOWER")
        color = BLUE if clear else svg.INK
        axes.plot([ratio.low, ratio.high], [row, row], color=color)
        axes.plot(ratio.median, row, "o", color=color, mfc=color if clear else "none", ms=6)
        axes.annotate(
            f"{ratio.median:.2f}× {comparison.verdict if comparison.counts else 'not counted'}",
            (1, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    if shown:
        axes.axvspan(1 / (1 + margin), 1 + margin, color=svg.INK, alpha=0.1, lw=0)
        axes.axvline(1, color=svg.INK, ls="--", lw=1)
        axes.set_yticks(range(len(shown)), [comparison.variant for comparison in shown])
        axes.set(xlabel=f"throughput over that of {baseline}")
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.margins(x=0.06)
        axes.xaxis.set_major_formatter("{x:g}×")
    names = [comparison.variant for comparison in shown] + [baseline]
    return Drawing(
        figure,
        say("Speed-up against %(baseline)s", baseline=baseline),
        say(
            "Right of the dashed line is faster. A line is the interval of a ratio; all of them "
            "hold at once. The shaded band is the margin of %(margin)s within which they are the "
            "same. A filled dot is a verdict of FASTER or SLOWER; not counted is what is not the "
            "same training.",
            margin=f"{margin:.1%}",
        )
        + left_out(results, names),
    )
