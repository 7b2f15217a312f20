"""Which comparisons the next time goes to.

Of those that can be decided in the time that is left, the one that matters most for each second
that it is expected to take; of the others, the one that matters most. Others with the same
reference that need these sessions too take turns with it: the reference is started and timed once
for all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformer_core.decide.refine.outlook import (
    GROWTH,
    Standing,
    best_rounds,
    seconds_needed,
    sessions_needed,
)

WORTH_JOINING = 0.5
"""Who needs this share of the sessions of the first, or more, joins in."""
LONGEST = 8
"""A session has at most so many times the least number of rounds."""


@dataclass(frozen=True)
class Limits:
    """What a study says of its comparisons."""

    margin: float
    rounds_least: int
    together: int
    """Sides that are alive at the same time."""

    def rounds(self, standing: Standing) -> int:
        """Rounds of a further session."""
        return best_rounds(standing, self.rounds_least, LONGEST * self.rounds_least)

    def seconds(self, standing: Standing) -> float:
        """About how much more time decides a comparison by itself."""
        return seconds_needed(standing, self.rounds(standing), self.margin)

    def sessions(self, standing: Standing) -> int:
        """About how many more sessions decide it."""
        return sessions_needed(standing, self.rounds(standing), self.margin)


@dataclass(frozen=True)
class Plan:
    """Sessions that are made next, before anybody looks at a verdict again."""

    reference: str
    variants: tuple[str, ...]
    sessions: int
    rounds: int
    session_seconds: float
    """About what each takes."""


def next_plan(standings: Iterable[Standing], left: float, limits: Limits) -> Plan | None:
    """What ``left`` seconds are best spent on first; None if nothing is undecided, or if no session
    fits into them."""
    waiting = [
        standing
        for standing in standings
        if not standing.decided and standing.costs.session(2, limits.rounds_least) <= left
    ]
    if not waiting:
        return None
    soon = [standing for standing in waiting if limits.seconds(standing) <= left]
    if soon:
        lead = max(soon, key=lambda standing: standing.weight / limits.seconds(standing))
    else:
        lead = max(waiting, key=lambda s: (s.weight, -limits.seconds(s)))
    crew = _crew(lead, soon or waiting, limits)
    sides, rounds = 1 + len(crew), limits.rounds(lead)
    while sides > 2 and lead.costs.session(sides, rounds) > left:
        sides -= 1
    while rounds > limits.rounds_least and lead.costs.session(sides, rounds) > left:
        rounds -= 1
    seconds = lead.costs.session(sides, rounds)
    sessions = min(limits.sessions(lead), GROWTH * lead.sessions, int(left // seconds))
    return Plan(
        reference=lead.reference,
        variants=tuple(standing.variant for standing in crew[: sides - 1]),
        sessions=max(1, sessions),
        rounds=rounds,
        session_seconds=seconds,
    )


def _crew(lead: Standing, waiting: Sequence[Standing], limits: Limits) -> list[Standing]:
    """The one that matters most, and those that join in."""
    least = WORTH_JOINING * limits.sessions(lead)
    others = [
        standing
        for standing in waiting
        if standing is not lead
        and standing.reference == lead.reference
        and limits.sessions(standing) >= least
    ]
    others.sort(key=lambda standing: -standing.weight / limits.seconds(standing))
    return [lead, *others][: limits.together - 1]
