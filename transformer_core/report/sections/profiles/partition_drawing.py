"""A step as a bar of what the devices do in it."""

from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes

from schemas.results import Breakdown, ProfileSummary
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, legend_below, name_rows, rows
from transformer_core.report.kit.palette import BLUE, BROWN, PURPLE, VERMILION, YELLOW
from transformer_core.report.kit.said import say

_PARTS = {
    "computation": BLUE,
    "computation and communication": PURPLE,
    "exposed communication": VERMILION,
    "exposed copies": YELLOW,
    "CUDA graphs": BROWN,
}


def partitions(found: Mapping[str, Breakdown]) -> Drawing:
    """What the devices did in a step, by the name of what was profiled."""
    figure, axes = rows(len(found), least=6)
    for row, breakdown in enumerate(found.values()):
        left = 0.0
        for (name, colour), share in zip(_PARTS.items(), _shares(breakdown), strict=True):
            width = share * _seconds(breakdown) * 1e3
            if width:
                axes.barh(row, width, 0.7, left, color=colour, lw=0, label=name)
            left += width
        idle = _seconds(breakdown) * 1e3 - left
        if idle > 0:
            axes.barh(row, idle, 0.7, left, fc="none", ec=svg.INK, lw=0.8, label="idle")
    if found:
        name_rows(axes, list(found))
        axes.set(xlabel="wall time of a profiled step (ms)", xlim=(0, None))
        legend_once(axes, [*_PARTS, "idle"])
    return Drawing(
        figure,
        say("Where the time of a step goes"),
        say(
            "Wall time of a step under the profiler, which slows it down, divided by what the "
            "devices do in it; mean over steps and devices. Exposed is what nothing is computed "
            "beside. Idle time is the host's: Python, dispatch, waiting for input."
        ),
    )


def legend_once(axes: Axes, order: Iterable[str]) -> None:
    """A legend below that names every label once, in ``order``."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    names = [name for name in order if name in once]
    axes.legend([once[name] for name in names], names)
    legend_below(axes, None)


def summary_of(breakdown: Breakdown) -> ProfileSummary:
    """All devices together, of a breakdown that has some."""
    assert breakdown.summary is not None
    return breakdown.summary


def _seconds(breakdown: Breakdown) -> float:
    return summary_of(breakdown).step_seconds


def _shares(breakdown: Breakdown) -> tuple[float, ...]:
    """The parts of the step in the order of the bars, without idle time."""
    found = summary_of(breakdown)
    overlap = found.overlap or 0.0
    return (
        (found.compute or 0.0) - overlap,
        overlap,
        found.exposed_communication or 0.0,
        found.exposed_copies or 0.0,
        found.exposed_graphs or 0.0,
    )
