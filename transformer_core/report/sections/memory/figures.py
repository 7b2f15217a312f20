"""Figures of memory: by rank of every run, by purpose, predicted; see also ``life.py``."""

from collections.abc import Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from schemas.results import PARTS, Parts, RankAnatomy
from transformer_core.decide.bytes_per_parameter import formula
from transformer_core.decide.data_frames import memory_frame
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import (
    Drawing,
    left_out,
    legend_below,
    name_rows,
    present,
    rows,
)
from transformer_core.report.kit.palette import SERIES
from transformer_core.report.kit.said import Said, say
from transformer_core.report.sections.memory.life import memory_milestones, memory_step
from transformer_core.report.sections.memory.parts import (
    COLOURS,
    MEBI,
    nothing_measured,
    parts_legend,
)
from transformer_core.report.sections.memory.read import Memory, read_memory, schemes, tensor_checks

__all__ = [
    "memory",
    "memory_anatomy",
    "memory_imbalance",
    "memory_milestones",
    "memory_prediction",
    "memory_step",
]


def memory(results: StudyResults) -> Drawing:
    """Peak memory of every rank."""
    frame = memory_frame(results.ordered)
    names = present(results, frame)
    figure, axes = rows(len(names))
    if names:
        sns.barplot(
            frame.assign(mebibytes=frame["peak_bytes"] / MEBI),
            x="mebibytes",
            y="variant",
            hue="rank",
            order=names,
            palette=SERIES[: frame["rank"].nunique()],
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
        say("Peak memory"),
        say(
            "A longer bar needs more: the largest peak of every rank over the repeats, reserved "
            "device memory on a GPU, the resident set of the process on a CPU."
        )
        + left_out(results, names),
    )


def memory_anatomy(results: StudyResults) -> Drawing:
    """The parts at the peak of every variant, with the formulas and the prediction beside."""
    memory = read_memory(results)
    found = memory.followed
    figure, axes = rows(len(found))
    for row, (name, rank) in enumerate(found.items()):
        _draw_parts(axes, row, rank)
        parameters = memory.ok[name].parameters
        if parameters:
            state = formula(results.specs[name]).model_state * parameters / MEBI
            axes.plot([state, state], [row - 0.45, row + 0.45], color=svg.INK, lw=1.6)
        expected = memory.expected_first(name)
        if expected is not None:
            axes.plot(expected.training_bytes / MEBI, row, "D", ms=5, mfc="none", mec=svg.INK)
    if found:
        name_rows(axes, list(found))
        axes.set(xlabel="tensors at the peak of a step, first rank (MiB)", xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        used = {part for rank in found.values() for part in PARTS if _of(rank.at_peak, part)}
        axes.plot([], [], color=svg.INK, lw=1.6, label="state by the formulas")
        axes.plot([], [], "D", ms=5, mfc="none", mec=svg.INK, ls="", label="predicted peak")
        parts_legend(figure, used, axes)
    return Drawing(
        figure,
        say("Where the memory goes"),
        say(
            "The parts at the fullest moment of a training step. What is not filled is work space "
            "inside kernels, which cannot be followed. The line is what the formulas say of "
            "weights, gradients and optimizer state; the diamond is the peak that was predicted "
            "without a run."
        )
        + _missing(results, memory, list(found)),
    )


def _draw_parts(axes: Axes, row: int, rank: RankAnatomy) -> None:
    left = 0.0
    for part in PARTS:
        width = _of(rank.at_peak, part) / MEBI
        if width:
            axes.barh(row, width, 0.7, left, color=COLOURS[part], lw=0)
        left += width
    rest = (rank.residual_bytes or 0) / MEBI
    if rest > 0:
        axes.barh(row, rest, 0.7, left, fc="none", ec=svg.INK, lw=0.8)


def memory_imbalance(results: StudyResults) -> Drawing:
    """The peak of every device, side by side, of each way of dividing the work."""
    title = say("Memory by rank")
    memory = read_memory(results)
    found = schemes(results, memory)
    if not found:
        return nothing_measured(title)
    most = max(len(result.ranks) for result in found.values())
    figure, axes = rows(len(found) * max(1, most // 2))
    height = 0.8 / most
    for row, result in enumerate(found.values()):
        for place, rank in enumerate(result.ranks):
            axes.barh(
                row - 0.4 + (place + 0.5) * height,
                rank.peak_tensor_bytes / MEBI,
                0.9 * height,
                color=SERIES[place % len(SERIES)],
                lw=0,
                label=f"{place}" if row == 0 else None,
            )
    name_rows(axes, list(found))
    axes.set(xlabel="peak of tensors in a step (MiB)", xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    legend_below(axes, "rank or device")
    return Drawing(
        figure,
        title,
        say(
            "Bars of one length are ranks that are loaded alike, as by DistributedDataParallel and "
            "FSDP. DataParallel and its scheme on process groups (central) gather on rank 0, with "
            "the loss there or in the forward pass. One variant of each that the study runs on "
            "several devices."
        ),
    )


def memory_prediction(results: StudyResults) -> Drawing:
    """How far the prediction is off."""
    memory = read_memory(results)
    checks = tensor_checks(memory)
    names = list(dict.fromkeys(check.variant for check in checks))
    figure, axes = rows(len(names))
    if names:
        places = list(dict.fromkeys(check.place for check in checks))
        for number, place in enumerate(places):
            points = [check for check in checks if check.place == place]
            axes.plot(
                [check.error for check in points],
                [names.index(check.variant) for check in points],
                "os^Dv"[number % 5],
                color=SERIES[number % len(SERIES)],
                ms=6,
                alpha=0.85,
                label=place,
            )
        axes.axvspan(-0.1, 0.1, color=svg.INK, alpha=0.07, lw=0)
        axes.axvline(0, color=svg.INK, lw=0.8)
        name_rows(axes, names)
        widest = max(0.12, *(1.1 * abs(check.error) for check in checks))
        axes.set(xlabel="predicted over measured peak of tensors, minus 1", xlim=(-widest, widest))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        legend_below(axes, None)
    return Drawing(
        figure,
        say("Error of the prediction"),
        say(
            "Right of the line the prediction, which runs nothing, is larger than the measured "
            "peak of a step: on the fullest rank, or on each where they do different work. The "
            "band is 10 % to either side."
        )
        + _missing(results, memory, names),
    )


def _missing(results: StudyResults, memory: Memory, names: Sequence[str]) -> Said:
    if memory.measured:
        return left_out(results, names)
    return Said(" ", " ") + say("The study does not measure it.")


def _of(parts: Parts | None, part: str) -> int:
    return getattr(parts, part) if parts is not None else 0
