"""What the section on certificates shows."""

from typing import Any

from transformer_core.analysis.certificates.deviations import WORDS
from transformer_core.analysis.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """Quantities in words."""
    return {"words": WORDS}
