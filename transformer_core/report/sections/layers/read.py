"""The trees of modules of a study's profiles."""

from schemas.results import Breakdown, LayerUse
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.profiles.read import shown, telling
from transformer_core.trace.events.layers import SEPARATOR

_DEEPEST = 6
_LEAST = 0.01


def with_layers(results: StudyResults) -> dict[str, Breakdown]:
    """The profiles that are shown in detail and have a tree, or operators with shapes."""
    profiles = shown(results)
    return {
        name: profiles[name]
        for name in telling(results)
        if (summary := profiles[name].summary) and (summary.layers or summary.shapes)
    }


def steps_of(breakdown: Breakdown) -> int:
    """Steps of all devices, for means."""
    return sum(max(1, len(device.steps)) for device in breakdown.devices)


def depth(layer: LayerUse) -> int:
    """How many modules are around it."""
    return layer.path.count(SEPARATOR)


def large(layers: list[LayerUse]) -> list[LayerUse]:
    """The modules that take a visible part of the time of all, and are not too deep."""
    least = _LEAST * sum(layer.time_ns for layer in layers if depth(layer) == 0)
    return [layer for layer in layers if layer.time_ns >= least and depth(layer) < _DEEPEST]
