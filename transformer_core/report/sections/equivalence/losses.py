"""Figures of losses over the steps."""

import pandas as pd
from matplotlib.figure import Figure

from transformer_core.decide.data_frames import (
    training_loss_frame,
    validation_frame,
)
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit.drawing import (
    WIDTH,
    Drawing,
    left_out,
    legend_below,
    nothing,
    present,
)
from transformer_core.report.kit.palette import SERIES
from transformer_core.report.kit.said import Said, say

_DASHES: list[tuple[float, ...]] = [(), (4, 1.5), (1, 1), (5, 1, 1, 1), (2, 1)]


def training_loss(results: StudyResults) -> Drawing:
    """Training loss over the steps."""
    ok = [result.variant for result in results.ordered if result.status == "ok"]
    frame = training_loss_frame({name: results.steps_file(name) for name in ok})
    words = say(
        "Lower is better: cross-entropy in nats per target token, with label smoothing, over the "
        "steps. First repeat of each variant."
    )
    if results.study.task.kind == "language_model":
        words = say(
            "Lower is better: cross-entropy in nats per token over the steps. First repeat of each "
            "variant."
        )
    return _loss(results, frame, say("Training loss"), words)


def validation_loss(results: StudyResults) -> Drawing:
    """Validation loss over the steps."""
    frame = validation_frame(results.ordered)
    words = say(
        "Lower is better: cross-entropy in nats per target token of the validation split, without "
        "label smoothing. First repeat of each variant."
    )
    if results.study.task.kind == "language_model":
        words = say(
            "Lower is better: cross-entropy in nats per token of the validation split. First "
            "repeat of each variant."
        )
    return _loss(results, frame, say("Validation loss"), words, marker="o")


def _loss(
    results: StudyResults, frame: pd.DataFrame, title: Said, words: Said, marker: str | None = None
) -> Drawing:
    names = present(results, frame)
    figure = Figure(figsize=(WIDTH, 3.2 + 0.12 * len(names)), layout="constrained")
    if names:
        axes = figure.subplots()
        colors = SERIES
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
        words + left_out(results, names),
    )
