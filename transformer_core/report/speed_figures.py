"""Figures of throughput, speed-up and drift."""

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from transformer_core.analysis.compare import differs
from transformer_core.analysis.frames import windows_frame
from transformer_core.report import svg
from transformer_core.report.drawing import WIDTH, Drawing, left_out, nothing, present, rows
from transformer_core.report.inputs import Results


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
    """The ratios of the medians, against 1."""
    shown = [comparison for comparison in results.comparisons.values() if comparison.speedup]
    figure, axes = rows(len(shown))
    blue, *_ = sns.color_palette("colorblind")
    for row, comparison in enumerate(shown):
        ratio = comparison.speedup
        assert ratio is not None
        clear = comparison.counts and differs(comparison)
        color = blue if clear else svg.INK
        axes.plot([ratio.low, ratio.high], [row, row], color=color)
        axes.plot(ratio.median, row, "o", color=color, mfc=color if clear else "none", ms=6)
        axes.annotate(
            f"{ratio.median:.2f}×",
            (1, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    if shown:
        axes.axvline(1, color=svg.INK, ls="--", lw=1)
        axes.set_yticks(range(len(shown)), [comparison.variant for comparison in shown])
        axes.set(xlabel=f"throughput over that of {results.study.baseline}")
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.margins(x=0.06)
        axes.xaxis.set_major_formatter("{x:g}×")
    names = [comparison.variant for comparison in shown] + [results.study.baseline]
    return Drawing(
        figure,
        f"Speed-up against {results.study.baseline}",
        "Ratio of the median throughputs with its interval. Right of the dashed line is faster. A "
        f"hollow dot says that the interval does not settle it, or that it is not the same "
        f"training.{left_out(results, names)}",
    )


def drift(results: Results) -> Drawing:
    """Time per token over the run, relative to the variant's median: what noise looks like."""
    frame = windows_frame(results.ordered)
    names = present(results, frame)
    rows = max(1, -(-len(names) // 2))
    figure = Figure(figsize=(WIDTH, 0.9 + 1.25 * rows), layout="constrained")
    if not names:
        return Drawing(nothing(figure), "Drift over the run", left_out(results, names).strip())
    grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flat
    for axes, name in zip(grid, names, strict=False):
        sns.lineplot(
            frame[frame["variant"] == name],
            x="last_step",
            y="relative_time",
            hue="repeat",
            style="repeat",
            palette=sns.color_palette("colorblind", frame["repeat"].nunique()),
            hue_order=sorted(frame["repeat"].unique()),
            style_order=sorted(frame["repeat"].unique()),
            legend=False,
            ax=axes,
        )
        axes.axhline(1, color=svg.INK, lw=0.8, ls="--")
        axes.set_title(name, fontsize=10)
        axes.set(xlabel="", ylabel="")
    for axes in list(grid)[len(names) :]:
        axes.set_visible(False)
    figure.supxlabel("optimizer step", fontsize=11)
    figure.supylabel("time per token / median", fontsize=11)
    return Drawing(
        figure,
        "Drift over the run",
        "Time per token of each timed window over the median of its variant; a line is a repeat. "
        f"Differences smaller than this are noise.{left_out(results, names)}",
    )
