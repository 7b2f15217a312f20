"""Figures of the machine's limits: collective operations by size, utilisation by variant."""

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

from transformer_core.report import svg
from transformer_core.report.drawing import WIDTH, Drawing, legend_below, nothing, rows
from transformer_core.report.formats import plain_size
from transformer_core.report.inputs import Results
from transformer_core.report.machine_inputs import (
    bucket_bytes,
    read_collectives,
    read_utilisation,
)

_DASHES: list[tuple[float, ...]] = [(), (4, 1.5), (1, 1), (5, 1, 1, 1)]
_MARKERS = "os^Dv<>P"


def collective_bandwidth(results: Results) -> Drawing:
    """Bus bandwidth over message size, with the gradient buckets of the model."""
    run, table = read_collectives(results)
    title = "Collective operations by message size"
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    if table.empty:
        reason = f"{run.status}: {run.reason}"
        return Drawing(nothing(figure, "Not measured"), title, f"Nothing was measured: {reason}")
    axes = figure.subplots()
    colors = sns.color_palette("colorblind")
    for place, (name, curve) in enumerate(table.groupby("collective", sort=False)):
        (line,) = axes.plot(
            curve["bytes"],
            curve["bus_bandwidth"],
            # The one that training leans on most stands out.
            color=svg.INK if name == "all_reduce" else colors[place % len(colors)],
            lw=2.2 if name == "all_reduce" else 1.4,
            marker=_MARKERS[place % len(_MARKERS)],
            ms=4,
            label=str(name).replace("_", "-"),
        )
        if dashes := _DASHES[place % len(_DASHES)]:
            line.set_dashes(dashes)
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
    return Drawing(
        figure,
        title,
        f"{run.backend} between {run.world_size} processes. Bus bandwidth as nccl-tests defines "
        "it: the size of the largest buffer over the time of the slowest rank, corrected for the "
        "number of ranks. ring-all-reduce is this project's own."
        + (f" Dotted: gradient buckets of the variants ({marked})." if sizes else ""),
    )


def utilisation(results: Results) -> Drawing:
    """Share of the measured ceiling that every variant's arithmetic reaches."""
    found = [record for record in read_utilisation(results) if record.of_ceiling]
    figure, axes = rows(len(found))
    blue, *_ = sns.color_palette("colorblind")
    for row, record in enumerate(found):
        useful, whole = record.of_ceiling, record.padded_of_ceiling
        assert useful is not None
        if whole is not None:
            axes.barh(row, whole.median, height=0.62, color=svg.INK, alpha=0.25, lw=0)
        axes.barh(row, useful.median, height=0.62, color=blue, lw=0)
        axes.plot([useful.low, useful.high], [row, row], color=svg.INK, lw=1.2)
    if found:
        axes.set_yticks(
            range(len(found)), [f"{record.variant} ({record.format})" for record in found]
        )
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set(xlabel="share of the measured matrix rate", xlim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    missing = [r.variant for r in read_utilisation(results) if r.of_ceiling is None]
    return Drawing(
        figure,
        "Utilisation",
        "Model FLOPs per second over the best matrix rate that was measured in the same format, on "
        "all devices of the variant. Full bar: tokens; pale: with padding; line: interval."
        + (f" Left out: {', '.join(missing)}." if missing else ""),
    )
