"""The machine: its limits and how close a step comes to them, collective operations, utilisation by the
variants, and how all of it was measured."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame

from schemas.results import Interval, Utilisation
from schemas.results.common import BASELINE
from transformer_core.common.study_clock import CLOCK, read_clock
from transformer_core.decide import compare
from transformer_core.decide import intervals as medians
from transformer_core.decide.study_results import StudyResults, throughputs
from transformer_core.decide.utilisation import Headroom, headroom, topology_of
from transformer_core.measure import session_ratio
from transformer_core.measure.session_ratio import step_seconds
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.formats import combination, plain_size
from transformer_core.report.kit.language import NOTHING, also, say
from transformer_core.report.kit.palette import VARIANT


def machine_context(results: StudyResults) -> dict[str, Any]:
    run, table = results.collectives or (None, None)
    rated = [rate for rate in results.roofline.matrix if rate.flops_per_second]
    return {
        "best": max(rated, key=lambda rate: rate.flops_per_second or 0.0, default=None),
        "roofline": results.roofline,
        "collective_run": run,
        "collectives": [
            (str(name), *of_one.sort_values("bytes").iloc[[0, -1]].to_dict("records"))
            for name, of_one in (() if table is None else table.groupby("collective", sort=False))
        ],
        "utilisation": utilisation_in_turns(results),
    }


def bucket_sizes(results: StudyResults) -> list[int]:
    """Bytes of the gradient buckets of the variants that ran with DistributedDataParallel."""
    told = [
        next((repeat.communication for repeat in result.repeats if repeat.communication), {})
        for result in results.ordered
    ]
    return sorted({int(size) for one in told for size in one.get("bucket_bytes") or ()})


def utilisation_in_turns(results: StudyResults) -> list[Utilisation]:
    """Utilisation at the throughput of the turns instead of that of a variant's own run.

    FLOPs follow from tokens, so all rates of a variant change by one factor.
    """
    found = throughputs(results)
    scaled = []
    for record in results.utilisation:
        alone = results.variants[record.variant].tokens_per_second
        in_turns = found.get(record.variant)
        if alone is None or in_turns is None:
            scaled.append(record)
            continue
        factor = in_turns.median / alone.median
        changes = {
            name: value.mapped(lambda rate, factor=factor: rate * factor)  # type: ignore[misc]
            for name, value in record
            if isinstance(value, Interval)
        }
        scaled.append(record.model_copy(update=changes))
    return scaled


def draw_collective_bandwidth(results: StudyResults) -> Drawing:
    if results.collectives is None:
        words = say("Not measured: no variant has several processes.")
        return drawing.empty("collective_bandwidth", words, "Not measured")
    run, table = results.collectives
    if table.empty:
        reason = f"{run.status}: {run.reason}"
        words = say("Nothing was measured: %(reason)s", reason=reason)
        return drawing.empty("collective_bandwidth", words, "Not measured")
    figure, axes = drawing.chart(4.6)
    _curves(axes, table)
    sizes = bucket_sizes(results)
    for number, size in enumerate(sizes):
        axes.axvline(
            size, color=svg.INK, ls=":", lw=1, label=None if number else "a gradient bucket"
        )
    axes.set(xscale="log", yscale="log")
    svg.name_axis(axes.xaxis.label, say("message"))
    svg.name_axis(axes.yaxis.label, say("bus bandwidth (bytes/s)"))
    ticks = sorted(set(table["bytes"]))
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: max(1, -(-len(ticks) // 6))]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_size(round(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    drawing.legend_below(axes)
    marked = ", ".join(plain_size(size) for size in sizes)
    dotted = also("Dotted: gradient buckets of the variants (%(sizes)s).", sizes=marked)
    return drawing.captioned(
        "collective_bandwidth",
        figure,
        dotted if sizes else NOTHING,
        backend=run.backend,
        ranks=run.world_size,
    )


def _curves(axes: Axes, table: DataFrame) -> None:
    for place, (name, curve) in enumerate(table.groupby("collective", sort=False)):
        # Highlights the operation that training uses most.
        used_most = {"color": svg.INK, "lw": 2.2} if name == "all_reduce" else {"lw": 1.4}
        axes.plot(
            curve["bytes"],
            curve["bus_bandwidth"],
            marker=drawing.marker(place),
            ms=4,
            label=str(name).replace("_", "-"),
            **drawing.series(place) | used_most,
        )


def draw_utilisation(results: StudyResults) -> Drawing:
    records = utilisation_in_turns(results)
    found = [record for record in records if record.of_ceiling]
    names = [f"{record.variant} ({record.format})" for record in found]
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
    for row, record in enumerate(found):
        useful, whole = record.of_ceiling, record.padded_of_ceiling
        assert useful is not None
        if whole is not None:
            axes.barh(row, whole.median, height=0.62, color=svg.INK, alpha=0.25, lw=0)
        axes.barh(row, useful.median, height=0.62, color=VARIANT, lw=0)
        drawing.whisker(axes, row, useful, lw=1.2)
    if found:
        words = say("share of the measured matrix rate")
        drawing.x_axis(axes, words, drawing.percents(), xlim=(0, None))
    missing = [record.variant for record in records if record.of_ceiling is None]
    left_out = also("Left out: %(names)s.", names=", ".join(missing)) if missing else NOTHING
    short = drawing.shortened(names, results.study.baseline)
    return drawing.captioned("utilisation", figure, short, left_out)


def headroom_context(results: StudyResults) -> dict[str, Any]:
    """Both steps by operator class, as far as they were timed and profiled; the recommendation
    first, because it is the answer."""
    name, found = results.study.baseline, results.search
    rooms = (
        _room(results, combination(found.parts, name), found.side, found.spec, found.profile),
        _room(results, name, BASELINE, results.specs[name], results.breakdowns.get(name)),
    )
    return {"rooms": [room for room in rooms if room]}


def _room(results: StudyResults, name: str, side: str, spec: Any, profile: Any) -> Headroom | None:
    sessions = results.search.sessions
    seconds, topology = step_seconds(sessions, side), topology_of(sessions, side)
    if profile is None or seconds is None or topology is None:
        return None
    return headroom(name, spec, topology, seconds, profile, results.roofline)


def method_context(results: StudyResults) -> dict[str, Any]:
    """Settings of the turns, constants of the statistics, and the time that jobs took."""
    jobs = read_clock(results.folder / CLOCK.name).jobs
    sides = [s for run in results.paired_runs for session in run.sessions for s in session.sides]
    on_gpus = any(side.topology and side.topology.device == "cuda" for side in sides)
    asked = results.study.comparison
    return {
        "comparison": asked.on_gpus() if on_gpus else asked,
        "jobs": sorted(jobs.items(), key=lambda job: -job[1].seconds),
        "jobs_seconds": sum(times.seconds for times in jobs.values()),
        "confidence": medians.CONFIDENCE,
        "blocks": medians.BLOCKS,
        "fewest_samples": medians.FEWEST_SAMPLES,
        "input_wait_limit": compare.INPUT_WAIT_LIMIT,
        "trim": session_ratio.TRIM,
    }
