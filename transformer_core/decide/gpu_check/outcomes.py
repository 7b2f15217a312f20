"""What became of a line of the check of a GPU."""

from schemas.results import Status
from schemas.results.gpu_check import Check, Outcome

_OUTCOMES: dict[Status, Outcome] = {"unsupported": "unsupported", "ok": "held"}


def outcome_of(status: Status) -> Outcome:
    """Of a job that ended like this: a mistake unless it is ok, or this machine cannot."""
    return _OUTCOMES.get(status, "failed")


def judged(holds: bool) -> Outcome:
    """Whether what was expected is so."""
    return "held" if holds else "not_held"


def line(
    name: str, expected: str, outcome: Outcome, found: str, reason: str | None, file: str
) -> Check:
    """A line of the page that comes from one file, named from the folder of results."""
    return Check(
        name=name,
        expected=expected,
        outcome=outcome,
        found=found,
        reason=reason,
        files=[f"results/{file}"],
    )
