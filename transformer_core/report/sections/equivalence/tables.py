"""The table of the certificates."""

from schemas.results import Deviation
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row


def equivalence(results: StudyResults) -> list[Row]:
    """A row per variant and compared quantity; one without a quantity where none was compared."""
    nothing: list[Deviation | None] = [None]
    return [
        {
            "variant": certificate.variant,
            "equivalence": certificate.equivalence.kind,
            "certificate": certificate.status,
            "compared_with": certificate.reference,
            "seeds": len(certificate.seeds),
            "steps": len(certificate.steps),
            "quantity": deviation.quantity if deviation else None,
            "measured": deviation.measured if deviation else None,
            "bound": deviation.bound if deviation else None,
            "where": deviation.where if deviation else None,
            "reason": certificate.reason,
        }
        for certificate in results.certificates.values()
        for deviation in certificate.deviations or nothing
    ]
