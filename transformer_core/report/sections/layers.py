"""Which layers take the time? Modules and operators by shape, from the profiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from schemas.results import LayerUse, ShapeUse
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import Drawing, captioned, empty, legend, panels
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import colour_of
from transformer_core.report.sections.profiles import (
    PerStep,
    shown,
    summary_of,
    telling,
    with_roofline_shares,
)
from transformer_core.trace.events.phases import SEPARATOR

_DEEPEST = 6
_LEAST = 0.01


def depth(layer: LayerUse) -> int:
    """The number of modules around it."""
    return layer.path.count(SEPARATOR)


def large(layers: list[LayerUse]) -> list[LayerUse]:
    """The modules with a visible share of the total time that are not too deep."""
    least = _LEAST * sum(layer.time_ns for layer in layers if depth(layer) == 0)
    return [layer for layer in layers if layer.time_ns >= least and depth(layer) < _DEEPEST]


@dataclass(frozen=True)
class Tree(PerStep):
    layers: list[LayerUse]
    shapes: list[tuple[ShapeUse, float | None]]
    """Operators by shape, with their shares of the roofline."""
    whole_ns: int  # device time in all modules

    def share(self, layer: LayerUse) -> float | None:
        return layer.time_ns / self.whole_ns if self.whole_ns else None


def layers_context(results: StudyResults) -> dict[str, Any]:
    found = trees(results)
    answered = next((tree for tree in found if tree.layers), None)
    parts = [layer for layer in answered.layers if depth(layer) == 1] if answered else []
    return {
        "trees": found,
        "answered": answered,
        "largest": max(parts, key=lambda layer: layer.time_ns, default=None),
    }


def trees(results: StudyResults) -> list[Tree]:
    """Those of the profiles shown in detail that have modules or operators with shapes."""
    profiles = shown(results)
    return [
        Tree(
            name=name,
            steps=profiles[name].device_steps,
            layers=large(summary.layers),
            shapes=with_roofline_shares(results, name, summary.shapes),
            whole_ns=sum(layer.time_ns for layer in summary.layers if depth(layer) == 0),
        )
        for name in telling(results)
        for summary in [summary_of(profiles[name])]
        if summary.layers or summary.shapes
    ]


_PHASES = {name: colour_of(name) for name in ("forward", "backward", "other")}
_MOST = 2
_ALPHA = 0.55


def draw_layer_tree(results: StudyResults) -> Drawing:
    found = [tree for tree in trees(results) if tree.layers][:_MOST]
    if not found:
        return empty("layer_tree", say("No trace names the modules of the model."))
    levels = [1 + max(map(depth, tree.layers)) for tree in found]
    each = sum(0.34 * count + 0.7 for count in levels) / len(levels)
    figure, shown_panels = panels([tree.name for tree in found], each, levels)
    for axes, tree, count in zip(shown_panels, found, levels, strict=True):
        _draw(axes, tree.layers, tree.steps)
        axes.set(ylim=(count - 0.5, -0.5))
    svg.name_axis(shown_panels[-1].xaxis.label, say("device time of a step (ms)"))
    legend(figure, _PHASES, lw=0, alpha=_ALPHA)
    return captioned("layer_tree", figure)


def _draw(axes: Axes, layers: Sequence[LayerUse], steps: int) -> None:
    begins: dict[str, float] = {"": 0.0}
    whole = sum(layer.time_ns for layer in layers if depth(layer) == 0) / 1e6 / steps
    for layer in layers:
        outer, _, name = layer.path.rpartition(SEPARATOR)
        left = begins[outer]
        width = layer.time_ns / 1e6 / steps
        begins[outer], begins[layer.path] = left + width, left
        place, edge = left, depth(layer)
        for phase, shade in _PHASES.items():
            part = getattr(layer, f"{phase}_ns") / 1e6 / steps
            if part:
                axes.add_patch(
                    Rectangle((place, edge - 0.46), part, 0.92, fc=shade, lw=0, alpha=_ALPHA)
                )
            place += part
        axes.add_patch(Rectangle((left, edge - 0.46), width, 0.92, fc="none", ec=svg.INK, lw=0.4))
        if width * 90 > whole * len(name):
            axes.text(left + width / 2, edge, name, ha="center", va="center_baseline", fontsize=8)
    axes.set(xlim=(0, whole), yticks=[])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
