"""What the figures of memory share: the parts of memory in words and colours."""

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from schemas.results import PARTS
from transformer_core.report.kit.drawing import WIDTH, Drawing, nothing
from transformer_core.report.kit.palette import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
)
from transformer_core.report.kit.said import Said, say

MEBI = 1 << 20
COLOURS = dict(zip(PARTS, (BLUE, SKY, GREEN, ORANGE, PINK, VERMILION, PURPLE, YELLOW), strict=True))

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
"""The parts as the figures call them."""


def nothing_measured(title: Said) -> Drawing:
    figure = nothing(Figure(figsize=(WIDTH, 1.6), layout="constrained"))
    return Drawing(figure, title, say("No memory was measured."))


def parts_legend(figure: Figure, used: set[str], axes: Axes | None = None) -> None:
    """The parts that are shown, and what ``axes`` has labelled, below the figure."""
    handles: list[Artist] = [
        Patch(color=COLOURS[part], label=WORDS[part]) for part in PARTS if part in used
    ]
    if axes is not None:
        handles += axes.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=10)
