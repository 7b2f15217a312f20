"""Memory over the life of a process, and over one training step."""

from itertools import pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from schemas.results import PARTS, RankAnatomy
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import WIDTH, Drawing
from transformer_core.report.kit.palette import SERIES
from transformer_core.report.kit.said import say
from transformer_core.report.sections.memory.parts import (
    COLOURS,
    MEBI,
    nothing_measured,
    parts_legend,
)
from transformer_core.report.sections.memory.read import label, read_memory, telling

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
"""Milestones in the order of a life."""
_SOURCES = {
    "rss_bytes": ("process (resident set)", 0, "o"),
    "tensor_bytes": ("tensors (torch's allocator)", 1, "s"),
    "reserved_bytes": ("reserved (torch's allocator)", 2, "^"),
    "process_bytes": ("process on the device (NVML)", 3, "D"),
    "device_bytes": ("device (NVML)", 4, "v"),
}


def memory_milestones(results: StudyResults) -> Drawing:
    """Memory at the moments of a run, a panel for each device of two variants."""
    title = say("Memory over the life of a process")
    memory = read_memory(results)
    panels = [
        (f"{name}, {label(memory.ok[name], rank)}", rank)
        for name in telling(results, memory)
        for rank in memory.ok[name].ranks[:2]
    ]
    if not panels:
        return nothing_measured(title)
    figure = Figure(figsize=(WIDTH, 1.1 + 1.9 * len(panels)), layout="constrained")
    shown = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    seen: dict[str, Artist] = {}
    for axes, (name, rank) in zip(shown, panels, strict=True):
        _draw_milestones(axes, rank, seen)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set(ylabel="MiB", ylim=(0, None))
    shown[-1].set_xticks(range(len(MOMENTS)), list(MOMENTS.values()), rotation=45, ha="right")
    shown[-1].set_xlabel("moment of the run")
    figure.legend(
        handles=list(seen.values()), labels=list(seen), loc="outside lower center", fontsize=10
    )
    return Drawing(
        figure,
        title,
        say(
            "How memory grows in the course of a run, as the process, torch's allocator and NVML "
            "see it: before anything is used, after the first kernel, with the weights, with the "
            "parallel strategy around them, after the first forward, backward and optimizer step, "
            "after the last step, and at most. The resident set of a process on a CPU holds "
            "everything, libraries too."
        ),
    )


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


def memory_step(results: StudyResults) -> Drawing:
    """What is alive over one training step, by purpose."""
    title = say("Memory over one training step")
    memory = read_memory(results)
    found = {
        name: rank for name in telling(results, memory) if (rank := memory.followed[name]).timeline
    }
    if not found:
        return nothing_measured(title)
    figure = Figure(figsize=(WIDTH, 1.3 + 2.3 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    used: set[str] = set()
    for axes, (name, rank) in zip(panels, found.items(), strict=True):
        used |= _draw_step(axes, rank)
        axes.set_title(f"{name}, {label(memory.ok[name], rank)}", loc="left", fontsize=10)
    panels[-1].set_xlabel("operations of the step, from the first to the last")
    parts_legend(figure, used)
    batches = "; ".join(
        f"{name}: {rank.batch.rows} rows of "
        + (f"{rank.batch.source_tokens} and " if rank.batch.source_tokens else "")
        + f"{rank.batch.target_tokens} tokens"
        for name, rank in found.items()
    )
    return Drawing(
        figure,
        title,
        say(
            "Tensors that are alive during a step after the first ones, by what they are for, on "
            "the micro-batch that needs most memory. Dotted lines divide forward, backward and "
            "update."
        )
        + f" {batches}.",
    )


def _draw_step(axes: Axes, rank: RankAnatomy) -> set[str]:
    """One panel; the parts that are in it."""
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
