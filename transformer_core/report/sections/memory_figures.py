"""Figures of memory: by rank of every run, by purpose, predicted."""

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from schemas.results import PARTS, Parts, RankAnatomy, VariantResult
from transformer_core.decide.bytes_per_parameter import formula
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import drawing, svg
from transformer_core.report.kit.drawing import Drawing
from transformer_core.report.kit.language import Said, also, say
from transformer_core.report.kit.palette import SERIES, colour_of
from transformer_core.report.sections.memory import (
    expected,
    followed,
    label,
    schemes,
    telling,
    tensor_checks,
)


def draw_memory(results: StudyResults) -> Drawing:
    frame = memory_frame(results.ordered)
    names = [name for name in results.variants if name in set(frame["variant"])]
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
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
        axes.set(ylabel="")
        svg.name_axis(axes.xaxis.label, say("peak memory of a rank (MiB)"))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        drawing.legend_below(axes, "rank")
    return drawing.captioned("memory", figure, drawing.left_out(results, names))


def memory_frame(results: Sequence[VariantResult]) -> pd.DataFrame:
    """A row per variant that is ok and rank: the largest peak over the repeats, in bytes. A rank that
    drives several devices (DataParallel) has one row per device, by device number."""
    rows = [
        (result.variant, places.index((memory.rank, memory.device)), memory.peak_bytes)
        for result in results
        if result.status == "ok"
        for repeat in result.repeats
        for places in [sorted({(m.rank, m.device) for m in repeat.memory})]
        for memory in repeat.memory
    ]
    frame = pd.DataFrame(rows, columns=["variant", "rank", "peak_bytes"])
    frame = frame.dropna(subset=["peak_bytes"])
    return frame.groupby(["variant", "rank"], sort=False)["peak_bytes"].max().reset_index()


def draw_memory_anatomy(results: StudyResults) -> Drawing:
    found = followed(results)
    figure, axes = drawing.rows(list(found), baseline=results.study.baseline)
    for row, (name, rank) in enumerate(found.items()):
        parts = [(None, _of(rank.at_peak, part) / MEBI, COLOURS[part]) for part in PARTS]
        left = drawing.stack(axes, row, parts)
        rest = (rank.residual_bytes or 0) / MEBI
        if rest > 0:
            axes.barh(row, rest, 0.7, left, fc="none", ec=svg.INK, lw=0.8)
        parameters = results.memory[name].parameters
        if parameters:
            state = formula(results.specs[name]).model_state * parameters / MEBI
            axes.plot([state, state], [row - 0.45, row + 0.45], color=svg.INK, lw=1.6)
        for predicted in expected(results, name)[:1]:
            axes.plot(predicted.training_bytes / MEBI, row, "D", ms=5, mfc="none", mec=svg.INK)
    if found:
        axes.set(xlim=(0, None))
        svg.name_axis(axes.xaxis.label, say("tensors at the peak of a step, first rank (MiB)"))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        used = {part for rank in found.values() for part in PARTS if _of(rank.at_peak, part)}
        axes.plot([], [], color=svg.INK, lw=1.6, label="state by the formulas")
        axes.plot([], [], "D", ms=5, mfc="none", mec=svg.INK, ls="", label="predicted peak")
        parts_legend(figure, used, axes)
    return drawing.captioned("memory_anatomy", figure, _missing(results, list(found)))


def draw_memory_imbalance(results: StudyResults) -> Drawing:
    found = schemes(results)
    if not found:
        return nothing_measured("memory_imbalance")
    most = max(len(result.ranks) for result in found.values())
    figure, axes = drawing.rows(
        list(found), height=max(1, most // 2), baseline=results.study.baseline
    )
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
    axes.set(xlim=(0, None))
    svg.name_axis(axes.xaxis.label, say("peak of tensors in a step (MiB)"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    drawing.legend_below(axes, "rank or device")
    return drawing.captioned("memory_imbalance", figure)


def draw_memory_prediction(results: StudyResults) -> Drawing:
    checks = tensor_checks(results)
    names = list(dict.fromkeys(check.variant for check in checks))
    figure, axes = drawing.rows(names, baseline=results.study.baseline)
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
        widest = max(0.12, *(1.1 * abs(check.error) for check in checks))
        axes.set(xlim=(-widest, widest))
        svg.name_axis(axes.xaxis.label, say("predicted over measured peak of tensors, minus 1"))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        drawing.legend_below(axes, None)
    return drawing.captioned("memory_prediction", figure, _missing(results, names))


def _missing(results: StudyResults, names: Sequence[str]) -> Said:
    return (
        drawing.left_out(results, names)
        if results.memory
        else also("The study does not measure it.")
    )


def _of(parts: Parts | None, part: str) -> int:
    return getattr(parts, part) if parts is not None else 0


MOMENTS = {
    "start": "start",
    "first_kernel": "first kernel",
    "weights": "weights",
    "wrapped": "wrapped",
    "first_forward": "forward",
    "first_backward": "backward",
    "first_step": "step",
    "steady": "steady",
    "peak": "peak",
}
"""Milestones in the order in which a run passes them."""
_SOURCES = {
    "rss_bytes": ("process (resident set)", 0, "o"),
    "tensor_bytes": ("tensors (torch's allocator)", 1, "s"),
    "reserved_bytes": ("reserved (torch's allocator)", 2, "^"),
    "process_bytes": ("process on the device (NVML)", 3, "D"),
    "device_bytes": ("device (NVML)", 4, "v"),
}


def draw_memory_milestones(results: StudyResults) -> Drawing:
    found = [
        (f"{name}, {label(results.memory[name], rank)}", rank)
        for name in telling(results)
        for rank in results.memory[name].ranks[:2]
    ]
    if not found:
        return nothing_measured("memory_milestones")
    figure, shown = drawing.panels([name for name, _ in found], 1.9)
    seen: dict[str, Artist] = {}
    for axes, (_, rank) in zip(shown, found, strict=True):
        _draw_milestones(axes, rank, seen)
        axes.set(ylabel="MiB", ylim=(0, None))
    shown[-1].set_xticks(range(len(MOMENTS)), list(MOMENTS.values()), rotation=45, ha="right")
    svg.name_axis(shown[-1].xaxis.label, say("moment of the run"))
    figure.legend(
        handles=list(seen.values()), labels=list(seen), loc="outside lower center", fontsize=10
    )
    return drawing.captioned("memory_milestones", figure)


def _draw_milestones(axes: Axes, rank: RankAnatomy, seen: dict[str, Artist]) -> None:
    places = {name: place for place, name in enumerate(MOMENTS)}
    for source, (words, colour, marker) in _SOURCES.items():
        points = [
            (places[milestone.name], value / MEBI)
            for milestone in rank.milestones
            if (value := getattr(milestone, source)) is not None
        ]
        if points:
            (line,) = axes.plot(
                *zip(*points, strict=True), marker=marker, ms=4, color=SERIES[colour]
            )
            seen.setdefault(words, line)


def draw_memory_step(results: StudyResults) -> Drawing:
    ranks = followed(results)
    found = {name: ranks[name] for name in telling(results) if ranks[name].timeline}
    if not found:
        return nothing_measured("memory_step")
    figure, shown = drawing.panels(
        [f"{name}, {label(results.memory[name], rank)}" for name, rank in found.items()], 2.3
    )
    used = {
        part
        for axes, rank in zip(shown, found.values(), strict=True)
        for part in _draw_step(axes, rank)
    }
    words = say("operations of the step, from the first to the last")
    svg.name_axis(shown[-1].xaxis.label, words)
    parts_legend(figure, used)
    batches = "; ".join(
        f"{name}: {rank.batch.rows} rows of "
        + (f"{rank.batch.source_tokens} and " if rank.batch.source_tokens else "")
        + f"{rank.batch.target_tokens} tokens"
        for name, rank in found.items()
    )
    return drawing.captioned("memory_step", figure, f" {batches}.")


def _draw_step(axes: Axes, rank: RankAnatomy) -> set[str]:
    points = rank.timeline
    used = [part for part in PARTS if any(getattr(point.parts, part) for point in points)]
    axes.stackplot(
        [point.position for point in points],
        [[getattr(point.parts, part) / MEBI for point in points] for part in used],
        colors=[COLOURS[part] for part in used],
        lw=0,
    )
    for before, after in pairwise(points):
        if before.phase != after.phase:
            axes.axvline((before.position + after.position) / 2, color=svg.INK, lw=0.8, ls=":")
    for phase in dict.fromkeys(point.phase for point in points):
        inside = [point.position for point in points if point.phase == phase]
        axes.text(
            (inside[0] + inside[-1]) / 2,
            0.98,
            phase,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
        )
    top = max(point.parts.total_bytes for point in points) / MEBI
    axes.set(ylabel="MiB", xlim=(0, 1), ylim=(0, 1.15 * top))
    return set(used)


MEBI = 1 << 20
COLOURS = {part: colour_of(part) for part in PARTS}

WORDS = {
    "weights_bytes": "weights",
    "master_weights_bytes": "master weights",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "buckets_bytes": "buckets",
    "communication_bytes": "messages",
    "activations_bytes": "activations",
    "temporary_bytes": "temporary",
}
"""Names of the parts in figures."""


def nothing_measured(name: str) -> Drawing:
    return drawing.empty(name, say("No memory was measured."), drawing.NO_VARIANT)


def parts_legend(figure: Figure, used: set[str], axes: Axes | None = None) -> None:
    """A legend below the figure with the parts ``used`` and the labels of ``axes``."""
    handles: list[Artist] = [
        Patch(color=COLOURS[part], label=WORDS[part]) for part in PARTS if part in used
    ]
    if axes is not None:
        handles += axes.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=10)
