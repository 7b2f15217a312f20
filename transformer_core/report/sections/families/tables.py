"""The table of the sweeps."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.kit.interval_columns import interval_columns


def families(results: StudyResults) -> list[Row]:
    """A row per member of a family that the study runs."""
    return [
        {
            "family": curve.family,
            "unit": curve.unit,
            "value": point.value,
            "is_knee": point.value == curve.knee,
            "variant": point.variant,
            "reference": point.reference,
            **interval_columns("throughput", point.throughput),
            **interval_columns("peak_memory", point.peak_memory),
            **interval_columns("traffic", point.traffic),
            "all_reduces_per_step": point.all_reduces,
            "verdict": point.verdict,
            "certificate": point.certificate,
            "reason": point.reason,
        }
        for curve in results.curves
        for point in curve.points
    ]
