"""What the section on layers shows."""

from dataclasses import dataclass
from typing import Any

from schemas.results import Breakdown, LayerUse, ShapeUse
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.layers.read import depth, large, steps_of, with_layers
from transformer_core.report.sections.profiles.read import measured_roofline
from transformer_core.trace.breakdown.summary import roofline_share
from transformer_core.trace.events.layers import SEPARATOR


@dataclass(frozen=True)
class Tree:
    """The modules and the operators of one profile, per step of one device."""

    name: str
    steps: int
    layers: list[LayerUse]
    shapes: list[tuple[ShapeUse, float | None]]
    """Operators by shape, with the share of the roofline that each reaches."""
    whole_ns: int
    """Device time in all modules."""

    def milliseconds(self, nanoseconds: int) -> float:
        """Of a step."""
        return nanoseconds / 1e6 / self.steps

    def per_step(self, count: int | None) -> float | None:
        """Likewise of a count."""
        return None if count is None else count / self.steps

    def billions(self, count: int | None) -> float | None:
        """Likewise in billions."""
        return None if count is None else count / 1e9 / self.steps

    def share(self, layer: LayerUse) -> float | None:
        """Of the device time in all modules."""
        return layer.time_ns / self.whole_ns if self.whole_ns else None

    @staticmethod
    def depth(layer: LayerUse) -> int:
        """How many modules are around it."""
        return depth(layer)

    @staticmethod
    def short(layer: LayerUse) -> str:
        """Its own name."""
        return layer.path.rpartition(SEPARATOR)[2]

    @staticmethod
    def rate(use: ShapeUse) -> float | None:
        """Billions of operations a second."""
        return use.flops / use.time_ns if use.flops is not None and use.time_ns else None


def context(results: StudyResults) -> dict[str, Any]:
    """The trees of the profiles that are shown in detail."""
    trees = [_tree(results, name, found) for name, found in with_layers(results).items()]
    answered = next((tree for tree in trees if tree.layers), None)
    parts = [layer for layer in answered.layers if depth(layer) == 1] if answered else []
    return {
        "trees": trees,
        "answered": answered,
        "largest": max(parts, key=lambda layer: layer.time_ns, default=None),
    }


def _tree(results: StudyResults, name: str, breakdown: Breakdown) -> Tree:
    assert breakdown.summary is not None
    roofline, layers = measured_roofline(results), breakdown.summary.layers
    return Tree(
        name=name,
        steps=steps_of(breakdown),
        layers=large(layers),
        shapes=[
            (use, roofline_share(use, roofline) if roofline and name in results.specs else None)
            for use in breakdown.summary.shapes
        ],
        whole_ns=sum(layer.time_ns for layer in layers if depth(layer) == 0),
    )
