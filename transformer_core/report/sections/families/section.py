"""What the section on families of variants shows."""

from typing import Any

from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """The curves, and the families of which the study runs too little for one."""
    return {
        "curves": [curve for curve in results.curves if curve.points],
        "knees": [curve for curve in results.curves if curve.points and curve.knee is not None],
        "without": [curve for curve in results.curves if not curve.points],
    }
