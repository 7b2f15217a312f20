"""All variants in numbers."""

from math import exp
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from schemas.results import PairedRun
from transformer_core.decide.study_results import (
    StudyResults,
    epoch_seconds,
    session_rates,
    throughputs,
)
from transformer_core.measure.session_ratio import log_ratios
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.language import NOTHING, also, say
from transformer_core.report.kit.palette import VARIANT


def context(results: StudyResults) -> dict[str, Any]:
    """Throughput and time per epoch by variant, and the fastest one with a certificate."""
    found = throughputs(results)
    certified = [name for name in found if results.certificates[name].status == "equivalent"]
    return {
        "fastest": max(certified, key=lambda name: found[name].median, default=None),
        "throughputs": found,
        "epochs": {
            name: epoch_seconds(result, found.get(name))
            for name, result in results.variants.items()
        },
    }


def rounds_frame(run: PairedRun) -> pd.DataFrame:
    """A row per round of a comparison, numbered consecutively with a gap between sessions.

    ``reference`` is the throughput of the reference's window, ``ratio`` the variant's over it; each
    divided by its median.
    """
    rows = []
    number = 0
    for session in run.sessions:
        logs = log_ratios(session.rounds, run.pair)
        for rnd, ratio in zip(session.rounds, logs, strict=True):
            number += 1
            window = next(window for window in rnd.windows if window.side == run.reference)
            rows.append((session.number, number, window.tokens / window.seconds, exp(ratio)))
        number += 1
    frame = pd.DataFrame(rows, columns=["session", "round", "reference", "ratio"])
    for column in ("reference", "ratio"):
        frame[column] /= frame[column].median()
    return frame


MOST_PANELS = 16  # most comparisons in the figure of the rounds


def draw_throughput(results: StudyResults) -> Drawing:
    found = throughputs(results)
    names = [name for name in results.variants if name in found]
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
    for row, name in enumerate(names):
        interval = found[name]
        axes.barh(row, interval.median, 0.6, color=VARIANT, alpha=0.45, lw=0)
        drawing.whisker(axes, row, interval, zorder=3)
    if names:
        sessions = session_rates(results)
        places = [names.index(results.study.baseline)] * len(sessions)
        axes.plot(sessions, places, "o", color=VARIANT, ms=4, alpha=0.8)
        axes.set(xlim=(0, None))
        svg.name_axis(axes.xaxis.label, say("non-padding tokens per second"))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return drawing.captioned("throughput", figure, drawing.left_out(results, names))


def draw_drift(results: StudyResults) -> Drawing:
    runs = [run for run in results.paired_runs if run.status == "ok"]
    title = drawing.title_of("drift")
    shown = runs[:MOST_PANELS]
    count = max(1, -(-len(shown) // 2))
    figure = Figure(figsize=(drawing.WIDTH, 0.9 + 1.25 * count), layout="constrained")
    names = [run.variant for run in runs] + [results.study.baseline]
    missing = drawing.left_out(results, names)
    if not shown:
        return Drawing(drawing.nothing(figure), title, missing.strip())
    grid = list(figure.subplots(count, 2, sharex=True, sharey=True, squeeze=False).flat)
    for axes, run in zip(grid, shown, strict=False):
        frame = rounds_frame(run)
        for _, session in frame.groupby("session"):
            axes.plot(session["round"], session["reference"], color=svg.INK, alpha=0.45, lw=1)
            axes.plot(session["round"], session["ratio"], color=VARIANT)
        axes.axhline(1, color=svg.INK, lw=0.8, ls="--")
        axes.set_title(run.variant, fontsize=10)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    words = say("round; a gap is a new session in fresh processes")
    svg.name_axis(figure.supxlabel("", fontsize=11), words)
    svg.name_axis(figure.supylabel("", fontsize=11), say("over the median"))
    cut = also("The first %(shown)s of %(all)s comparisons.", shown=len(shown), all=len(runs))
    return drawing.captioned("drift", figure, cut if len(runs) > len(shown) else NOTHING, missing)
