"""Modules and shapes as tables: ``layers.csv`` and ``shapes.csv``."""

from schemas.results import LayerUse, ShapeUse
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.sections.profiles.read import measured_roofline, shown
from transformer_core.trace.breakdown.summary import roofline_share


def layers(results: StudyResults) -> list[Row]:
    """A row per variant and module, summed over its devices and steps."""
    return [
        {"variant": name} | {field: getattr(use, field) for field in LayerUse.model_fields}
        for name, breakdown in shown(results).items()
        for use in (breakdown.summary.layers if breakdown.summary else ())
    ]


def shapes(results: StudyResults) -> list[Row]:
    """A row per variant and operator with inputs of some shapes, likewise; the share of the
    roofline is that of this machine, and null for traces that were brought."""
    roofline = measured_roofline(results)
    found: list[Row] = []
    for name, breakdown in shown(results).items():
        for use in breakdown.summary.shapes if breakdown.summary else ():
            share = roofline_share(use, roofline) if roofline and name in results.specs else None
            fields = {field: getattr(use, field) for field in ShapeUse.model_fields}
            found.append({"variant": name} | fields | {"roofline_share": share})
    return found
