"""Figures of losses and memory."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from transformer_core.analysis.frames import memory_frame, training_loss_frame, validation_frame
from transformer_core.report.drawing import (
    WIDTH,
    Drawing,
    left_out,
    legend_below,
    nothing,
    present,
    rows,
)
from transformer_core.report.inputs import Results

_MEBI = 1 << 20
_DASHES: list[tuple[float, ...]] = [(), (4, 1.5), (1, 1), (5, 1, 1, 1), (2, 1)]


def training_loss(results: Results) -> Drawing:
    """Training loss over the steps."""
    ok = [result.variant for result in results.ordered if result.status == "ok"]
    frame = training_loss_frame({name: results.steps_file(name) for name in ok})
    return _loss(
        results, frame, "Training loss", "per target token, with label smoothing, over the steps"
    )


def validation_loss(results: Results) -> Drawing:
    """Validation loss over the steps."""
    frame = validation_frame(results.ordered)
    words = "per target token of the validation split, without label smoothing"
    return _loss(results, frame, "Validation loss", words, marker="o")


def memory(results: Results) -> Drawing:
    """Peak memory of every rank."""
    frame = memory_frame(results.ordered)
    names = present(results, frame)
    figure, axes = rows(len(names))
    if names:
        sns.barplot(
            frame.assign(mebibytes=frame["peak_bytes"] / _MEBI),
            x="mebibytes",
            y="variant",
            hue="rank",
            order=names,
            palette="colorblind",
            saturation=1,
            errorbar=None,
            edgecolor="none",
            legend="full" if frame["rank"].nunique() > 1 else False,
            ax=axes,
        )
        axes.set(xlabel="peak memory of a rank (MiB)", ylabel="")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        legend_below(axes, "rank")
    return Drawing(
        figure,
        "Peak memory",
        "Largest peak of every rank over the repeats: reserved device memory on a GPU, resident "
        f"set of the process on a CPU.{left_out(results, names)}",
    )


def _loss(
    results: Results, frame: pd.DataFrame, title: str, words: str, marker: str | None = None
) -> Drawing:
    names = present(results, frame)
    figure = Figure(figsize=(WIDTH, 3.2 + 0.12 * len(names)), layout="constrained")
    if names:
        axes = figure.subplots()
        colors = sns.color_palette("colorblind", 10)
        for name in names:
            position = list(results.variants).index(name)
            loss = frame[frame["variant"] == name]
            (line,) = axes.plot(
                loss["step"],
                loss["loss"],
                color=colors[position % len(colors)],
                marker=marker,
                ms=4,
                label=name,
            )
            dashes = _DASHES[position % len(_DASHES)]
            if dashes:
                line.set_dashes(dashes)
        axes.set(xlabel="optimizer step", ylabel=f"{title.lower()} (nats per token)")
        legend_below(axes, None)
    else:
        nothing(figure)
    return Drawing(
        figure,
        title,
        f"Cross-entropy in nats {words}; first repeat of each variant.{left_out(results, names)}",
    )
