"""How soon the baseline and the recommendation translate well."""

from typing import Any

from schemas.results import QualitySide
from schemas.results.search import BASELINE
from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """The result, and its sides under the names that the page gives them."""
    found = results.quality
    return {"quality": found, "sides": [(name_of(s), s) for s in found.sides] if found else []}


def name_of(side: QualitySide) -> str:
    """The techniques of a side."""
    return side.parts[0] if side.name == BASELINE else " + ".join(side.parts)
