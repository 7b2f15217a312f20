"""Differences of profiles as a table: ``differences.csv``."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.sections.why.read import reasons

_LISTS = ("parts", "phases", "operators", "collectives", "kernels")


def differences(results: StudyResults) -> list[Row]:
    """A row per comparison and thing that both profiles list, in milliseconds of a step."""
    found: list[Row] = []
    for reason in reasons(results):
        pair = {"variant": reason.comparison.variant, "reference": reason.comparison.reference}
        changes = [("step", reason.difference.step)]
        for kind in _LISTS:
            changes += [(kind, change) for change in getattr(reason.difference, kind)]
        found += [
            pair
            | {
                "kind": kind,
                "name": change.name,
                "reference_ms": change.first_ms,
                "variant_ms": change.second_ms,
                "difference_ms": change.difference_ms,
            }
            for kind, change in changes
        ]
    return found
