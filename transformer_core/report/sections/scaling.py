"""More devices and slow links: projections, and how well they match measurements."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from schemas.config.parallel import LinkKind, show_bandwidth
from schemas.results import Comparison, ProjectedCurve, ProjectedStrategy, Projection, VariantResult
from transformer_core.common.percent import percent
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.formats import plain_duration
from transformer_core.report.kit.language import Said, also, say
from transformer_core.report.kit.palette import VARIANT, series_colour


@dataclass(frozen=True)
class LinkedRun:
    result: VariantResult
    bandwidth: str | None  # of the limited link; null for an unlimited link
    kind: LinkKind | None
    hosts: list[str]
    step_seconds: float | None
    comparisons: list[Comparison]  # with other runs on several hosts


def linked_runs(results: StudyResults) -> list[LinkedRun]:
    names = [name for name, spec in results.specs.items() if spec.machine.nodes > 1]
    found = []
    for name in names:
        result, link = results.variants[name], results.specs[name].machine.link
        topologies = [r.topology for r in result.repeats if r.topology is not None]
        used = topologies[0].link if topologies else None
        seconds = [window.step_seconds for window in result.windows]
        found.append(
            LinkedRun(
                result=result,
                bandwidth=show_bandwidth(link.bandwidth) if link else None,
                kind=used.kind if used else None,
                hosts=list(dict.fromkeys(p.host for t in topologies[:1] for p in t.ranks)),
                step_seconds=median(seconds) if seconds else None,
                comparisons=[
                    comparison
                    for comparison in results.all_comparisons
                    if comparison.variant == name and comparison.reference in names
                ],
            )
        )
    return found


def scaling_context(results: StudyResults) -> dict[str, Any]:
    """Runs over links, the error of the emulated link, and projections."""
    projection = results.projection
    curves = shown_curves(projection) if projection else []
    return {
        "runs": linked_runs(results),
        "link_error": results.link_error,
        "projection": projection,
        "curves": curves,
        "ddp": [curve for curve in curves if curve.strategy == "ddp"],
        "dropped": dropped(projection) if projection and not projection.reason else {},
        "most_error": MOST_ERROR,
        "strategies": STRATEGIES,
        "show_bandwidth": show_bandwidth,
    }


STRATEGIES = {
    "ddp": "DDP",
    "ddp_no_overlap": "DDP without overlap",
    "accumulation_sync": "accumulation, every micro-batch reduced",
    "accumulation_no_sync": "accumulation with no_sync",
    "fsdp": "FSDP",
    "central": "central",
}
"""Projected strategies, in words."""

SHOWN_BUCKET_MB = 25.0
"""Bucket size of the strategies that are shown: DistributedDataParallel's default."""

MOST_ERROR = 0.2  # a strategy with a larger median error in measured runs has no curve


def errors(projection: Projection) -> dict[ProjectedStrategy, float]:
    """Median absolute error of each strategy that was measured."""
    found: dict[ProjectedStrategy, list[float]] = defaultdict(list)
    for check in projection.checks:
        if check.strategy is not None and check.error is not None:
            found[check.strategy].append(abs(check.error))
    return {strategy: median(sizes) for strategy, sizes in found.items()}


def dropped(projection: Projection) -> dict[ProjectedStrategy, float]:
    return {name: error for name, error in errors(projection).items() if error > MOST_ERROR}


def shown_curves(projection: Projection) -> list[ProjectedCurve]:
    """The curves of strategies without large errors, with one bucket size if they have buckets."""
    wrong = dropped(projection)
    return [
        curve
        for curve in projection.curves
        if curve.bucket_mb in (None, SHOWN_BUCKET_MB) and curve.strategy not in wrong
    ]


_PLAIN = FuncFormatter(lambda value, _: f"{value:,g}")
GOAL = 0.05  # target for the median error of the emulated link


def draw_scaling(results: StudyResults) -> Drawing:
    projection = results.projection
    curves = shown_curves(projection) if projection else []
    if projection is None or not curves:
        return _not_projected(projection, "scaling")
    figure, of_link = _panels([curve.link for curve in curves])
    for curve in sorted(curves, key=lambda curve: [*STRATEGIES].index(curve.strategy)):
        of_link[curve.link].plot(
            [point.devices for point in curve.points],
            [point.efficiency for point in curve.points],
            label=STRATEGIES[curve.strategy],
            **drawing.series([*STRATEGIES].index(curve.strategy)),
        )
    for axes in of_link.values():
        axes.axhline(0.5, color=svg.INK, lw=0.8, ls=":")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.04)
        axes.yaxis.set_major_formatter(drawing.percents())
        axes.xaxis.set_major_formatter(_PLAIN)
    svg.name_axis(axes.xaxis.label, say("number of devices"))
    words = say("throughput per device over that of one alone")
    svg.name_axis(figure.supylabel("", fontsize=11), words)
    drawing.legend_once(axes, STRATEGIES.values())
    return drawing.captioned("scaling", figure, _said_error(projection))


def draw_bucket_sizes(results: StudyResults) -> Drawing:
    projection = results.projection
    if projection is None or not projection.buckets or "ddp" in dropped(projection):
        return _not_projected(projection, "bucket_sizes")
    figure, of_link = _panels([best.link for best in projection.buckets])
    devices = list(dict.fromkeys(best.devices for best in projection.buckets))
    for best in projection.buckets:
        axes = of_link[best.link]
        style = drawing.series(devices.index(best.devices))
        axes.plot(
            [tried.bucket_mb for tried in best.tried],
            [tried.step_seconds for tried in best.tried],
            label=f"{best.devices} devices",
            **style,
        )
        axes.plot(best.bucket_mb, best.step_seconds, "o", color=style["color"], ms=6)
    for axes in of_link.values():
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(_PLAIN)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_duration(value)))
    svg.name_axis(axes.xaxis.label, say("bucket size (MiB)"))
    svg.name_axis(figure.supylabel("", fontsize=11), say("time of a step"))
    drawing.legend_below(axes)
    return drawing.captioned("bucket_sizes", figure)


def _not_projected(projection: Projection | None, name: str) -> Drawing:
    reason = say("the study asks for no projection")
    if projection and projection.reason:
        reason = Said(projection.reason, projection.reason)
    elif projection:
        reason = say("measured runs differ too much from the projection")
    return drawing.empty(name, say("No curves: %(reason)s.", reason=reason), "Nothing to project")


def _panels(links: Sequence[str]) -> tuple[Figure, dict[str, Axes]]:
    names = list(dict.fromkeys(links))
    figure, found = drawing.panels([name.replace("_", " ") for name in names], 2.1)
    return figure, dict(zip(names, found, strict=True))


def _said_error(projection: Projection) -> Said:
    """The error of the model in its checks."""
    if projection.median_error is None or projection.worst_error is None:
        return also("Not checked against any run.")
    count = sum(check.error is not None for check in projection.checks)
    return also(
        "Checked against measured runs (%(count)s): off by %(median)s in the median, %(worst)s at worst.",
        count=count,
        median=percent(projection.median_error),
        worst=percent(projection.worst_error),
    )


def draw_projection_check(results: StudyResults) -> Drawing:
    projection = results.projection
    shown = [c for c in projection.checks if c.error is not None] if projection else []
    figure, axes = drawing.rows([check.variant for check in shown], baseline=results.study.baseline)
    for row, check in enumerate(shown):
        assert check.error is not None
        axes.plot([0, check.error], [row, row], color=VARIANT)
        axes.plot(check.error, row, "o", color=VARIANT, ms=6)
        drawing.beside(axes, row, plain_duration(check.measured_seconds))
    if shown:
        axes.axvline(0, color=svg.INK, ls="--", lw=1)
        axes.margins(x=0.1)
        words = say("predicted over measured step time, minus 1")
        drawing.x_axis(axes, words, drawing.percents())
    short = drawing.shortened([check.variant for check in shown], results.study.baseline)
    return drawing.captioned("projection_check", figure, short)


def draw_link_error(results: StudyResults) -> Drawing:
    found = results.link_error
    shown = [trial for trial in found.trials if trial.error is not None] if found else []
    figure, axes = drawing.rows([trial.name.replace("_", " ") for trial in shown])
    if shown:
        bandwidths = list(dict.fromkeys(trial.bandwidth for trial in shown))
        for row, trial in enumerate(shown):
            assert trial.error is not None
            first = row == 0 or shown[row - 1].bandwidth != trial.bandwidth
            number = bandwidths.index(trial.bandwidth)
            axes.plot(
                trial.error,
                row,
                drawing.marker(number),
                color=series_colour(number),
                ms=7,
                label=show_bandwidth(trial.bandwidth) if first else None,
            )
        axes.axvspan(-GOAL, GOAL, color=svg.INK, alpha=0.08, lw=0)
        axes.axvline(0, color=svg.INK, ls="--", lw=1)
        words = say("step time over the emulated link over that of the real one, minus 1")
        axes.margins(x=0.1)
        drawing.x_axis(axes, words, drawing.percents())
        drawing.legend_below(axes)
    return drawing.captioned("link_error", figure)
