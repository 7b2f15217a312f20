"""The comparisons of a study with what their profiles say of them."""

from dataclasses import dataclass

from schemas.results import Comparison
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.profiles.read import shown
from transformer_core.trace.compare import Difference, difference


@dataclass(frozen=True)
class Reason:
    """A comparison, and how the profiled steps of its two sides differ."""

    comparison: Comparison
    difference: Difference


def reasons(results: StudyResults) -> list[Reason]:
    """Every comparison of which both sides were profiled, in the order of the comparisons."""
    profiles = shown(results)
    return [
        Reason(found, difference(profiles[found.reference], profiles[found.variant]))
        for found in results.all_comparisons
        if found.reference in profiles and found.variant in profiles
    ]
