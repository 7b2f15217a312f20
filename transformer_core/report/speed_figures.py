"""Figures of throughput, speed-up and drift."""

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from transformer_core.analysis.frames import rounds_frame, windows_frame
from transformer_core.report import svg
from transformer_core.report.drawing import WIDTH, Drawing, left_out, nothing, present, rows
from transformer_core.report.inputs import Results

MOST_PANELS = 16
"""Comparisons in the figure of the rounds at most."""


def throughput(results: Results) -> Drawing:
    """Every timed window, with the median and its interval."""
    frame = windows_frame(results.ordered)
    names = present(results, frame)
    figure, axes = rows(len(names))
    if names:
        blue, *_ = sns.color_palette("colorblind")
        sns.stripplot(
            frame,
            x="tokens_per_second",
            y="variant",
            hue="repeat",
            order=names,
            palette=[blue] * frame["repeat"].nunique(),
            dodge=True,
            jitter=False,
            alpha=0.45,
            size=4,
            legend=False,
            ax=axes,
        )
        for row, name in enumerate(names):
            interval = results.variants[name].tokens_per_second
            if interval:
                axes.plot([interval.low, interval.high], [row, row], color=svg.INK, zorder=3)
                axes.plot(interval.median, row, "|", color=svg.INK, ms=14, mew=2, zorder=3)
        axes.set(xlabel="non-padding tokens per second", ylabel="", xlim=(0, None))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return Drawing(
        figure,
        "Throughput",
        "Non-padding tokens per second. A dot is a timed window, a row of dots a repeat, the "
        f"upright stroke the median and the line its interval.{left_out(results, names)}",
    )


def speedup(results: Results) -> Drawing:
    """The ratios with their intervals, against 1 and the margin of what is the same."""
    baseline, margin = results.study.baseline, results.study.comparison.margin
    shown = [comparison for comparison in results.comparisons.values() if comparison.speedup]
    figure, axes = rows(len(shown))
    blue, *_ = sns.color_palette("colorblind")
    for row, comparison in enumerate(shown):
        ratio = comparison.speedup
        assert ratio is not None
        clear = comparison.counts and comparison.verdict in ("FASTER", "SLOWER")
        color = blue if clear else svg.INK
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
        f"Speed-up against {baseline}",
        "Ratio of the throughputs with its interval, which holds for all of them at once. Right of "
        f"the dashed line is faster; the shaded band is the margin of {margin:.1%} within which "
        "they are the same. A filled dot is a verdict of FASTER or SLOWER; not counted is what is "
        "not the same training."
        f"{left_out(results, names)}",
    )


def drift(results: Results) -> Drawing:
    """The rounds of the comparisons: how the machine drifts, and that the ratio does not."""
    runs = [run for run in results.paired_runs() if run.status == "ok"]
    title = "Drift, seen and cancelled"
    shown = runs[:MOST_PANELS]
    count = max(1, -(-len(shown) // 2))
    figure = Figure(figsize=(WIDTH, 0.9 + 1.25 * count), layout="constrained")
    names = [run.variant for run in runs] + [results.study.baseline]
    missing = left_out(results, names)
    if not shown:
        return Drawing(nothing(figure), title, missing.strip())
    grid = list(figure.subplots(count, 2, sharex=True, sharey=True, squeeze=False).flat)
    blue, *_ = sns.color_palette("colorblind")
    for axes, run in zip(grid, shown, strict=False):
        frame = rounds_frame(run)
        for _, session in frame.groupby("session"):
            axes.plot(session["round"], session["reference"], color=svg.INK, alpha=0.45, lw=1)
            axes.plot(session["round"], session["ratio"], color=blue)
        axes.axhline(1, color=svg.INK, lw=0.8, ls="--")
        axes.set_title(run.variant, fontsize=10)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("round; a gap is a new session in fresh processes", fontsize=11)
    figure.supylabel("over the median", fontsize=11)
    left = f" The first {len(shown)} of {len(runs)} comparisons." if len(runs) > len(shown) else ""
    return Drawing(
        figure,
        title,
        "Each round of the comparisons with the baseline. Grey: the speed of the baseline's window "
        "over its median, which shows what the machine does. Blue: the ratio of the two windows of "
        f"the round over its median, from which that has gone.{left}{missing}",
    )
