"""Figures of the machine's limits: collective operations by size, utilisation by variant."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import WIDTH, Drawing, legend_below, nothing, rows
from transformer_core.report.kit.formats import plain_size
from transformer_core.report.kit.palette import BLUE, SERIES
from transformer_core.report.kit.said import NOTHING, Said, say
from transformer_core.report.sections.machine.read import bucket_bytes, utilisation_in_turns

_DASHES: list[tuple[float, ...]] = [(), (4, 1.5), (1, 1), (5, 1, 1, 1)]
_MARKERS = "os^Dv<>P"


def collective_bandwidth(results: StudyResults) -> Drawing:
    """Bus bandwidth over message size, with the gradient buckets of the model."""
    title = say("Collective operations by message size")
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    if results.collectives is None:
        return Drawing(
            nothing(figure, "Not measured"),
            title,
            say("Not measured: no variant has several processes."),
        )
    run, table = results.collectives
    if table.empty:
        reason = f"{run.status}: {run.reason}"
        words = say("Nothing was measured: %(reason)s", reason=reason)
        return Drawing(nothing(figure, "Not measured"), title, words)
    axes = figure.subplots()
    _curves(axes, table)
    buckets = bucket_bytes(results)
    sizes = sorted({size for of_variant in buckets.values() for size in of_variant})
    for number, size in enumerate(sizes):
        axes.axvline(
            size, color=svg.INK, ls=":", lw=1, label=None if number else "a gradient bucket"
        )
    axes.set(xscale="log", yscale="log", xlabel="message", ylabel="bus bandwidth (bytes/s)")
    ticks = sorted(set(table["bytes"]))
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: max(1, -(-len(ticks) // 6))]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_size(round(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    legend_below(axes, None)
    marked = ", ".join(plain_size(size) for size in sizes)
    dotted = Said(" ", " ") + say(
        "Dotted: gradient buckets of the variants (%(sizes)s).", sizes=marked
    )
    return Drawing(
        figure,
        title,
        say(
            "Higher is faster: %(backend)s between %(ranks)s processes, by the size of a message. "
            "Bus bandwidth as nccl-tests defines it: the largest buffer over the time of the "
            "slowest rank, corrected for the number of ranks. ring-all-reduce is this project's "
            "own.",
            backend=run.backend,
            ranks=run.world_size,
        )
        + (dotted if sizes else NOTHING),
    )


def _curves(axes: Axes, table: DataFrame) -> None:
    for place, (name, curve) in enumerate(table.groupby("collective", sort=False)):
        (line,) = axes.plot(
            curve["bytes"],
            curve["bus_bandwidth"],
            # The one that training leans on most stands out.
            color=svg.INK if name == "all_reduce" else SERIES[place % len(SERIES)],
            lw=2.2 if name == "all_reduce" else 1.4,
            marker=_MARKERS[place % len(_MARKERS)],
            ms=4,
            label=str(name).replace("_", "-"),
        )
        if dashes := _DASHES[place % len(_DASHES)]:
            line.set_dashes(dashes)


def utilisation(results: StudyResults) -> Drawing:
    """Share of the measured ceiling that every variant's arithmetic reaches."""
    found = [record for record in utilisation_in_turns(results) if record.of_ceiling]
    figure, axes = rows(len(found))
    for row, record in enumerate(found):
        useful, whole = record.of_ceiling, record.padded_of_ceiling
        assert useful is not None
        if whole is not None:
            axes.barh(row, whole.median, height=0.62, color=svg.INK, alpha=0.25, lw=0)
        axes.barh(row, useful.median, height=0.62, color=BLUE, lw=0)
        axes.plot([useful.low, useful.high], [row, row], color=svg.INK, lw=1.2)
    if found:
        axes.set_yticks(
            range(len(found)), [f"{record.variant} ({record.format})" for record in found]
        )
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set(xlabel="share of the measured matrix rate", xlim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    missing = [r.variant for r in utilisation_in_turns(results) if r.of_ceiling is None]
    return Drawing(
        figure,
        say("Utilisation"),
        say(
            "A longer bar makes more of the device: model FLOPs per second over the best matrix "
            "rate that was measured in the same format, on all devices of the variant. Full bar: "
            "tokens; pale: with padding; line: interval."
        )
        + (
            Said(" ", " ") + say("Left out: %(names)s.", names=", ".join(missing))
            if missing
            else NOTHING
        ),
    )
