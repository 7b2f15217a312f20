"""The figure of the speed-ups."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.drawing import Drawing, left_out
from transformer_core.report.kit.ratio_rows import RatioRow, ratio_points
from transformer_core.report.kit.said import say


def speedup(results: StudyResults) -> Drawing:
    """The ratios with their intervals, against 1 and the margin of what is the same."""
    baseline, margin = results.study.baseline, results.study.comparison.margin
    shown = [comparison for comparison in results.comparisons.values() if comparison.speedup]
    points = [
        RatioRow(
            comparison.variant,
            comparison.speedup,
            str(comparison.verdict) if comparison.counts else "not counted",
            clear=comparison.counts and comparison.verdict in ("FASTER", "SLOWER"),
        )
        for comparison in shown
        if comparison.speedup
    ]
    figure = ratio_points(points, baseline, margin)
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
