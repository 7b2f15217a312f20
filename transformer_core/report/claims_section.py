"""What the sections on claims and on families of variants show."""

from collections import Counter
from typing import Any, get_args

from schemas.results import ClaimResult, ClaimVerdict, FamilyCurve
from transformer_core.analysis.files import read_as
from transformer_core.report.inputs import Results


def read_claims(results: Results) -> list[ClaimResult]:
    """results/claims.json; ConfigError if it is missing or wrong."""
    found: list[ClaimResult] = read_as(results.folder / "claims.json", list[ClaimResult])
    return found


def read_curves(results: Results) -> list[FamilyCurve]:
    """results/families.json; ConfigError if it is missing or wrong."""
    found: list[FamilyCurve] = read_as(results.folder / "families.json", list[FamilyCurve])
    return found


def claims_context(results: Results) -> dict[str, Any]:
    """The claims, and how many have each verdict."""
    claims = read_claims(results)
    counts = Counter(claim.verdict for claim in claims)
    return {
        "claims": claims,
        "counts": [(verdict, counts[verdict]) for verdict in get_args(ClaimVerdict)],
    }


def families_context(results: Results) -> dict[str, Any]:
    """The curves, and the families of which the study runs too little for one."""
    curves = read_curves(results)
    return {
        "curves": [curve for curve in curves if curve.points],
        "without": [curve for curve in curves if not curve.points],
    }
