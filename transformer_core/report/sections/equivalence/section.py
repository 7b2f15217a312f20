"""What the section on certificates shows."""

from typing import Any

from transformer_core.certify.certificates.deviations import WORDS
from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """Quantities in words."""
    return {"words": WORDS}
