"""When a session has enough rounds, and a comparison enough sessions."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean
from typing import Literal

from schemas.config.measurement import Comparing
from schemas.results import Round, Session
from transformer_core.measure.turns.session import Enough
from transformer_core.measure.turns.session_ratio import session_ratio

Stopped = Literal["precision", "sessions", "budget"]


def stop(
    sessions: Sequence[Session], reference: str, variants: Sequence[str], comparing: Comparing
) -> Stopped | None:
    """Why no further session is needed; None if one is.

    Only the error within the sessions decides, never how far sessions are apart: to stop where two
    happen to agree would make all intervals too narrow.
    """
    if len(sessions) < comparing.sessions_least:
        return None
    if len(sessions) >= comparing.sessions_most:
        return "sessions"
    if all(_error(sessions, reference, name) < comparing.precision for name in variants):
        return "precision"
    spent = [session.seconds for session in sessions]
    if sum(spent) + fmean(spent) > _budget(comparing, variants):
        return "budget"
    return None


def enough(reference: str, variants: Sequence[str], comparing: Comparing) -> Enough:
    """When a session has its part of the precision, or of the budget."""
    part = _budget(comparing, variants) / comparing.sessions_least

    def precise(rounds: Sequence[Round], variant: str) -> bool:
        """Whether this session, with all others like it, would be precise enough."""
        error = session_ratio(rounds, reference, variant).error
        return 2 * error < comparing.precision * sqrt(comparing.sessions_least)

    def judge(rounds: Sequence[Round], seconds: float) -> bool:
        if len(rounds) < comparing.pairs:
            return False
        return seconds > part or all(precise(rounds, variant) for variant in variants)

    return judge


def _error(sessions: Sequence[Session], reference: str, variant: str) -> float:
    """Twice the standard error of the ratio, from the windows alone."""
    errors = [session_ratio(session.rounds, reference, variant).error for session in sessions]
    return 2 * sqrt(fmean(error**2 for error in errors) / len(errors))


def _budget(comparing: Comparing, variants: Sequence[str]) -> float:
    """Seconds for all sessions of ``variants`` and their reference."""
    return comparing.budget * (1 + len(variants)) / 2
