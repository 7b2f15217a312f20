"""The commands and settings with which a reader acts on the answer."""

from typing import Any

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.answer import read_answer


def context(results: StudyResults) -> dict[str, Any]:
    """The answer, whose commands the section explains."""
    return {"answer": read_answer(results)}
