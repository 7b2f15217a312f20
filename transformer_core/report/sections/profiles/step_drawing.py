"""One step of a training as rows of coloured spans."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import WIDTH, Drawing, nothing
from transformer_core.report.kit.palette import BLUE, BROWN, GREEN, GREY, ORANGE, VERMILION, YELLOW
from transformer_core.report.kit.said import say
from transformer_core.trace.breakdown.timeline import COLOURS, Lane, Span, Timeline

CLASSES = dict(zip(COLOURS, (BLUE, ORANGE, GREEN, VERMILION, GREY, YELLOW, BROWN), strict=True))
"""Colours of what a device does."""
WORDS = {"element_wise": "element-wise", "graphs": "CUDA graphs"}
_LETTERS = {"data": "D", "forward": "F", "loss": "L", "backward": "B", "optimizer": "O"}


def timelines(found: Mapping[str, Timeline]) -> Drawing:
    """A step of each, drawn from its events."""
    heights = [len(t.lanes) + len(t.phases) + 1.6 for t in found.values()]
    figure = Figure(figsize=(WIDTH, 0.7 + 0.2 * sum(heights)), layout="constrained")
    if not found:
        words = say("No profile marks the steps of a training.")
        return Drawing(nothing(figure), say("One step"), words)
    panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, timeline) in zip(panels, found.items(), strict=True):
        draw_step(axes, name, timeline)
    panels[-1].set_xlabel("milliseconds after the begin of the step")
    seen = {colour for t in found.values() for lane in t.lanes for colour in lane.spans}
    figure.legend(
        handles=[
            Rectangle((0, 0), 1, 1, color=CLASSES[colour], label=WORDS.get(colour, colour))
            for colour in COLOURS
            if colour in seen
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=10,
    )
    return Drawing(
        figure,
        say("One step"),
        say(
            "One profiled step of %(names)s. The letters mark the phases on the host: data (D), "
            "forward (F), loss (L), backward (B), optimizer (O). The rows below show what the "
            "device did: operators of a CPU and its communication, or the busiest streams of a "
            "GPU. A step is cut into 300 columns; a column shows what fills most of it, and stays "
            "empty if little runs.",
            names=", ".join(found),
        ),
    )


def draw_step(axes: Axes, name: str, timeline: Timeline) -> None:
    """One variant: for every rank the strip of phases, and a row per lane."""
    ticks: list[tuple[float, str]] = []
    row = 0
    for rank, strip in timeline.phases.items():
        _draw_strip(axes, row, strip, timeline.window_ns)
        ticks.append((row, f"rank {rank}"))
        row += 1
        for lane in (lane for lane in timeline.lanes if lane.rank == rank):
            _draw_lane(axes, row, lane)
            ticks.append((row, lane.label))
            row += 1
    axes.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks], fontsize=9)
    axes.set(xlim=(0, timeline.window_ns / 1e6), ylim=(row - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_title(name, loc="left", fontsize=10)


def _draw_strip(
    axes: Axes, row: int, strip: Sequence[tuple[str, int, int]], window_ns: int
) -> None:
    axes.add_patch(
        PathPatch(
            _boxes([(t0, t1) for _, t0, t1 in strip], row, 0.32), fc="none", ec=svg.INK, lw=0.5
        )
    )
    for phase, t0, t1 in strip:
        if t1 - t0 > window_ns / 40:  # a letter needs some room
            middle = (t0 + t1) / 2e6
            axes.text(middle, row, _LETTERS[phase], ha="center", va="center_baseline", fontsize=8)


def _draw_lane(axes: Axes, row: int, lane: Lane) -> None:
    for colour, spans in lane.spans.items():
        axes.add_patch(PathPatch(_boxes(spans, row, 0.42), fc=CLASSES[colour], lw=0))


def _boxes(spans: Sequence[Span], row: int, half: float) -> Path:
    """All spans as one path: a picture of one element instead of hundreds."""
    corners = [
        (x / 1e6, row + y)
        for t0, t1 in spans
        for x, y in ((t0, -half), (t1, -half), (t1, half), (t0, half), (t0, -half))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(spans)
    return Path(np.array(corners).reshape(-1, 2), codes)
