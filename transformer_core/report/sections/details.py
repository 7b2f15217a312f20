"""Every variant in detail."""

from typing import Any

from transformer_core.certify.bounds import WORDS, nearest
from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """Quantities in words, and of every certificate that holds what came nearest to its bound."""
    return {
        "words": WORDS,
        "nearest": {name: nearest(each) for name, each in results.certificates.items()},
    }
