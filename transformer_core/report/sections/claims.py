"""Claims of the original study, with their verdicts here."""

from collections import Counter
from typing import Any, get_args

from schemas.results import ClaimVerdict
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.kit.formats import interval_columns


def context(results: StudyResults) -> dict[str, Any]:
    """The claims, and how many have each verdict."""
    counts = Counter(claim.verdict for claim in results.claims)
    return {
        "claims": results.claims,
        "counts": {verdict: counts[verdict] for verdict in get_args(ClaimVerdict)},
    }


def claims_rows(results: StudyResults) -> list[Row]:
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
