"""The variants: by verdict, with the settings that each one changes, in numbers, by technique, and in
sweeps of one number."""

from collections.abc import Callable, Sequence
from functools import cache
from math import exp
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedFormatter, FixedLocator, NullLocator

from schemas.config.run_spec import RunSpec
from schemas.results import Comparison, FamilyCurve, FamilyPoint, Interval, PairedRun
from transformer_core.common.percent import percent
from transformer_core.decide.study_results import (
    StudyResults,
    epoch_seconds,
    session_rates,
    throughputs,
)
from transformer_core.measure.session_ratio import log_ratios
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing, RatioRow
from transformer_core.report.kit.language import NOTHING, also, both, say
from transformer_core.report.kit.palette import SERIES, VARIANT


def fastest_first(results: StudyResults) -> list[Comparison]:
    """The comparisons with the baseline that have a ratio, the largest first."""
    compared = [(c.speedup.median, c) for c in results.comparisons.values() if c.speedup]
    return [comparison for _, comparison in sorted(compared, key=lambda one: -one[0])]


def summarise(results: StudyResults) -> dict[str, list[Any]]:
    """The variants by verdict on their throughput, the largest ratio first.

    Only variants with a certificate, against a baseline with one, get a verdict. ``uncounted`` ones
    were timed, but without a certificate on both sides; ``not_equivalent`` ones should train the
    same model, and were shown not to.
    """
    compared = fastest_first(results)
    found: dict[str, list[Any]] = {
        verdict.lower(): [item for item in compared if item.counts and item.verdict == verdict]
        for verdict in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    }
    certificates = results.certificates.values()
    return found | {
        "uncounted": [item for item in compared if not item.counts],
        "not_equivalent": [item for item in certificates if item.status == "not_equivalent"],
    }


def changes(results: StudyResults, variant: str, reference: str) -> list[str]:
    """The settings in which a variant differs from ``reference``; several are a bundle."""
    before, after = (results.specs[name].model_dump(mode="json") for name in (reference, variant))
    names = []
    # no_meaning only says that the variant does not apply to the task.
    for section in after.keys() - {"variant", "no_meaning"}:
        old, new = before[section], after[section]
        if not isinstance(new, dict) or old.get("kind") != new.get("kind"):
            names += [section] if old != new else []
        else:
            names += [f"{section}.{field}" for field in new if old.get(field) != new[field]]
    if any(name.split(".")[0] == "parallel" for name in names):
        # A parallel strategy implies several devices: they are not a separate change.
        names = [name for name in names if name not in _PLACES]
    return sorted(names)


_PLACES = {"machine.nodes", "machine.devices_per_node"}


def changed_settings(baseline: RunSpec, recommended: RunSpec) -> dict[str, Any]:
    """Settings of ``recommended`` that differ from ``baseline``, nested as in a run spec; a section
    with a kind names it."""
    found = _differences(baseline.model_dump(mode="json"), recommended.model_dump(mode="json"))
    found.pop("variant", None)
    return found


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in after.items():
        other = before.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _differences(other, value):
                found[name] = inner
        elif value != other:
            found[name] = value
    return {"kind": after["kind"]} | found if found and "kind" in after else found


def tried_context(results: StudyResults) -> dict[str, Any]:
    return {"summary": summarise(results), "search": results.search}


def draw_speedup(results: StudyResults) -> Drawing:
    baseline, margin = results.study.baseline, results.study.comparison.margin
    points = [
        RatioRow(
            comparison.variant,
            comparison.speedup,
            str(comparison.verdict) if comparison.counts else "not counted",
            clear=comparison.counts and comparison.verdict in ("FASTER", "SLOWER"),
        )
        for comparison in results.comparisons.values()
        if comparison.speedup
    ]
    figure = drawing.ratio_points(points, drawing.over(baseline), margin, baseline)
    names = [point.name for point in points] + [baseline]
    return drawing.captioned(
        "speedup",
        figure,
        drawing.shortened(names, baseline),
        drawing.left_out(results, names),
        baseline=baseline,
        margin=percent(margin),
    )


def variants_context(results: StudyResults) -> dict[str, Any]:
    """Throughput and time per epoch by variant, and the fastest one whose ratio counts, or the baseline."""
    found, compared = throughputs(results), results.comparisons
    certified = [
        name
        for name in found
        if results.certificates[name].status == "equivalent"
        and (name not in compared or compared[name].counts)
    ]
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


def _grid(
    count: int, margin: float, each: float, columns: int = 2, share: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in rows ``each`` inches high, which may share their axes."""
    rows = -(-count // columns)
    figure = Figure(figsize=(drawing.WIDTH, margin + each * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).flat)
    for unused in grid[count:]:
        unused.set_visible(False)
    return figure, grid[:count]


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
        words = say("non-padding tokens per second")
        drawing.x_axis(axes, words, EngFormatter(sep=""), xlim=(0, None))
    short = drawing.shortened(names, results.study.baseline)
    return drawing.captioned("throughput", figure, short, drawing.left_out(results, names))


def draw_drift(results: StudyResults) -> Drawing:
    runs = [run for run in results.paired_runs if run.status == "ok"]
    shown = runs[:MOST_PANELS]
    names = [run.variant for run in runs] + [results.study.baseline]
    missing = drawing.left_out(results, names)
    if not shown:
        words = say("No variant was compared with the baseline.") + missing
        return drawing.empty("drift", words, drawing.NO_VARIANT)
    # Long titles take several lines, because they would overlap those of the next column.
    titles = [drawing.in_lines(drawing.short(run.variant, results.study.baseline)) for run in shown]
    more_lines = max(title.count("\n") for title in titles)
    figure, grid = _grid(len(shown), 0.9, 1.25 + 0.17 * more_lines, share=True)
    for axes, run, title in zip(grid, shown, titles, strict=True):
        frame = rounds_frame(run)
        for _, session in frame.groupby("session"):
            axes.plot(session["round"], session["reference"], color=svg.INK, alpha=0.45, lw=1)
            axes.plot(session["round"], session["ratio"], color=VARIANT)
        axes.axhline(1, color=svg.INK, lw=0.8, ls="--")
        axes.set_title(title, fontsize=10)
    words = say("round; a gap is a new session in fresh processes")
    svg.name_axis(figure.supxlabel("", fontsize=11), words)
    svg.name_axis(figure.supylabel("", fontsize=11), say("over the median"))
    cut = also("The first %(shown)s of %(all)s comparisons.", shown=len(shown), all=len(runs))
    names = [run.variant for run in shown]
    return drawing.captioned(
        "drift",
        figure,
        cut if len(runs) > len(shown) else NOTHING,
        drawing.shortened(names, results.study.baseline),
        missing,
    )


@cache
def techniques() -> dict[str, dict[str, Any]]:
    """All techniques by their id, in order: ``title`` and ``text`` by language, and the name of a
    ``diagram``."""
    return yaml.safe_load(Path(__file__).with_name("techniques.yaml").read_text(encoding="utf-8"))


def techniques_context(results: StudyResults) -> dict[str, Any]:
    """Techniques with their variants in the study, and those without any."""
    shown = [
        {
            "id": name,
            **told,
            "variants": [v for v in results.variants if name in results.definitions[v].tests],
        }
        for name, told in techniques().items()
    ]
    return {
        "techniques": [item for item in shown if item["variants"]],
        "absent": [item for item in shown if not item["variants"]],
        "both": lambda text: both(text["en"], text["ko"]),
    }


def families_context(results: StudyResults) -> dict[str, Any]:
    """The curves, and the families of which the study runs too few members for one."""
    curves = [curve for curve in results.curves if curve.points]
    return {
        "curves": curves,
        "knees": [curve for curve in curves if curve.knee is not None],
        "level": [
            curve
            for curve in curves
            if sum(point.counts and point.throughput is not None for point in curve.points) > 1
        ],
        "without": [curve for curve in results.curves if not curve.points],
    }


_LABEL_CHARACTERS = 34


def draw_families(results: StudyResults) -> Drawing:
    shown = [curve for curve in results.curves if curve.best is not None]
    figure = _panels(shown, _throughput)
    if shown:
        svg.name_axis(figure.supylabel("", fontsize=11), say("throughput over the reference"))
    notes = "".join(f" {curve.family}: {curve.note}." for curve in shown)
    return drawing.captioned("families", figure, notes)


def draw_family_costs(results: StudyResults) -> Drawing:
    shown = [
        curve
        for curve in results.curves
        if any(_sizes(curve.points, quantity) for quantity in _COSTS)
    ]
    figure = _panels(shown, _costs)
    if shown:
        svg.name_axis(figure.supylabel("", fontsize=11), say("over the reference"))
        drawing.legend_once(figure.axes[0], [label for label, *_ in _COSTS.values()])
    return drawing.captioned("family_costs", figure)


_COSTS = {"peak_memory": ("peak memory", "o", "-"), "traffic": ("bytes sent per step", "s", ":")}
"""Label, marker and line by quantity."""


def _panels(curves: Sequence[FamilyCurve], draw: Callable[[Axes, FamilyCurve], None]) -> Figure:
    """A panel per curve, or a sentence if there is none."""
    if not curves:
        return drawing.nothing()
    figure, grid = _grid(len(curves), 0.6, 2.1, min(2, len(curves)))
    for axes, curve in zip(grid, curves, strict=True):
        axes.axhline(1, color=svg.INK, ls="--", lw=0.8)
        draw(axes, curve)
        _values(axes, curve)
    return figure


def _throughput(axes: Axes, curve: FamilyCurve) -> None:
    counted = [(p.value, p.throughput.median) for p in curve.points if p.counts and p.throughput]
    axes.plot(*zip(*counted, strict=True), color=VARIANT, lw=1.2)
    for point in curve.points:
        if point.throughput is None:
            continue
        color = VARIANT if point.counts else svg.INK
        _whisker(axes, point.value, point.throughput, color, "o", filled=point.counts)
    if curve.knee is not None:
        axes.axvline(curve.knee, color=svg.INK, ls=":", lw=1.2)
    axes.yaxis.set_major_formatter("{x:g}×")


def _costs(axes: Axes, curve: FamilyCurve) -> None:
    for color, (quantity, (label, marker, line)) in zip(SERIES, _COSTS.items(), strict=False):
        sizes = _sizes(curve.points, quantity)
        medians = [size.median for _, size in sizes]
        places = [value for value, _ in sizes]
        axes.plot(places, medians, color=color, ls=line, lw=1.2, marker=marker, ms=5, label=label)
        for value, size in sizes:
            _whisker(axes, value, size, color, marker)
    axes.yaxis.set_major_formatter("{x:g}×")


def _sizes(points: Sequence[FamilyPoint], quantity: str) -> list[tuple[float, Interval]]:
    sizes = [(point.value, getattr(point, quantity)) for point in points]
    return [(value, size) for value, size in sizes if size is not None]


def _whisker(
    axes: Axes, x: float, size: Interval, color: object, marker: str, *, filled: bool = True
) -> None:
    axes.plot([x, x], [size.low, size.high], color=color, lw=1.4)
    axes.plot(x, size.median, marker, color=color, mfc=color if filled else "none", ms=5)


def _values(axes: Axes, curve: FamilyCurve) -> None:
    values = [point.value for point in curve.points]
    axes.set_xscale(curve.scale)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in values]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.1, y=0.15)
    axes.set_title(curve.family, fontsize=10)
    unit = f" ({curve.unit})" if curve.unit else ""
    axes.set_xlabel(fill(f"{curve.title.lower()}{unit}", _LABEL_CHARACTERS), fontsize=9)
    axes.tick_params(labelsize=9)
