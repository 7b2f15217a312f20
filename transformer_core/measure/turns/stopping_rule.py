"""When a session has enough rounds, and a comparison enough sessions."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean
from typing import Literal

from schemas.config.measurement import Comparing
from schemas.results import Pair, Round, Session
from transformer_core.measure.turns.session import Enough
from transformer_core.measure.turns.session_ratio import session_ratio

Stopped = Literal["precision", "sessions", "budget"]


def stop(
    sessions: Sequence[Session], pairs: Sequence[Pair], comparing: Comparing
) -> Stopped | None:
    """Why no further session is needed for ``pairs``; None if one is.

    Only the error within the sessions decides, never how far sessions are apart: to stop where two
    happen to agree would make all intervals too narrow.
    """
    if len(sessions) < comparing.sessions_least:
        return None
    if len(sessions) >= comparing.sessions_most:
        return "sessions"
    if all(_error(sessions, pair) < comparing.precision for pair in pairs):
        return "precision"
    spent = [session.seconds for session in sessions]
    if sum(spent) + fmean(spent) > _budget(comparing, pairs):
        return "budget"
    return None


def enough(pairs: Sequence[Pair], comparing: Comparing) -> Enough:
    """When a session has its part of the precision, or of the budget."""
    part = _budget(comparing, pairs) / comparing.sessions_least

    def precise(rounds: Sequence[Round], pair: Pair) -> bool:
        """Whether this session, with all others like it, would be precise enough."""
        error = session_ratio(rounds, pair).error
        return 2 * error < comparing.precision * sqrt(comparing.sessions_least)

    def judge(rounds: Sequence[Round], seconds: float) -> bool:
        if len(rounds) < comparing.pairs:
            return False
        return seconds > part or all(precise(rounds, pair) for pair in pairs)

    return judge


def _error(sessions: Sequence[Session], pair: Pair) -> float:
    """Twice the standard error of the ratio, from the windows alone."""
    errors = [session.ratio(pair).error for session in sessions]
    return 2 * sqrt(fmean(error**2 for error in errors) / len(errors))


def _budget(comparing: Comparing, pairs: Sequence[Pair]) -> float:
    """Seconds for all sessions of the sides that are compared."""
    return comparing.budget * len({name for pair in pairs for name in pair}) / 2
