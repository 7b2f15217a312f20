"""The table of the claims."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.kit.interval_columns import interval_columns


def claims(results: StudyResults) -> list[Row]:
    """A row per test of a claim."""
    return [
        {
            "claim": claim.claim,
            "statement": claim.statement,
            "source": claim.source,
            "verdict": claim.verdict,
            "test": evidence.kind,
            "what": evidence.what,
            "expected": evidence.expected,
            "outcome": evidence.outcome,
            "reason": evidence.reason,
            **interval_columns("number", evidence.number),
            "variants": " ".join(evidence.variants),
            "files": " ".join(evidence.files),
        }
        for claim in results.claims
        for evidence in claim.evidence
    ]
