"""The answer: what is recommended, how fast it is, and what was not decided."""

from typing import Any

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.recommendation.read import read_answer
from transformer_core.report.sections.summary.section import summarise


def context(results: StudyResults) -> dict[str, Any]:
    """The answer, the comparisons that it names, and how it was searched for."""
    summary = summarise(results)
    return {
        "answer": read_answer(results),
        "search": results.search,
        "faster": summary.faster,
        "undecided": summary.undecided,
    }
