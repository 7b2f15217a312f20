"""Claims of the original study, with their verdicts here."""

from collections import Counter
from typing import Any, get_args

from schemas.results import ClaimVerdict
from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """The claims, and how many have each verdict."""
    counts = Counter(claim.verdict for claim in results.claims)
    return {
        "claims": results.claims,
        "counts": {verdict: counts[verdict] for verdict in get_args(ClaimVerdict)},
    }
