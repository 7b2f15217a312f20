"""Spending the time that is left on the comparisons, one stint after the other."""

import time
from collections.abc import Callable, Sequence

from schemas.results import Session, Stint, Unsettled
from transformer_core.common.progress import log
from transformer_core.decide.refine.allocation import Limits, Plan, next_plan
from transformer_core.decide.refine.evidence import Pair, standings
from transformer_core.decide.refine.kept_stints import KeptStints
from transformer_core.decide.refine.outlook import Standing
from transformer_core.measure.turns.session import SessionEndedError

Measure = Callable[[Plan, int], Session]
"""Makes a session of a plan, by its number; SessionEndedError if a side ends before it."""


def spend(
    pairs: Sequence[Pair],
    limits: Limits,
    kept: KeptStints,
    measure: Measure,
    left: Callable[[], float],
    now: Callable[[], float] = time.monotonic,
) -> list[Stint]:
    """Add sessions to ``pairs`` until ``left`` seconds are over, or nothing is undecided.

    Verdicts are looked at between stints only; whether a stint is cut short depends on the clock
    alone.
    """
    done: list[Stint] = []
    while plan := next_plan(open_standings(pairs, limits), left(), limits):
        stint = _stint(plan, pairs, kept, measure, left, now)
        done.append(stint)
        names = ", ".join(plan.variants)
        log.info(
            "%s against %s: %d more sessions in %.0f s, %.0f s left",
            *(names, plan.reference, stint.sessions, stint.seconds, left()),
        )
    return done


def open_standings(pairs: Sequence[Pair], limits: Limits) -> list[Standing]:
    """Where the comparisons stand that can go on."""
    stuck = {(pair.variant, pair.reference) for pair in pairs if pair.stuck}
    found = standings(pairs, limits.margin)
    return [one for one in found if (one.variant, one.reference) not in stuck]


def _stint(
    plan: Plan,
    pairs: Sequence[Pair],
    kept: KeptStints,
    measure: Measure,
    left: Callable[[], float],
    now: Callable[[], float],
) -> Stint:
    crew = [p for p in pairs if p.reference == plan.reference and p.variant in plan.variants]
    number, began, made, reason = kept.last_stint + 1, now(), 0, ""
    while made < plan.sessions and (not made or plan.session_seconds <= left()):
        try:
            session = measure(plan, kept.last + 1)
        except SessionEndedError as error:
            reason = str(error)
            log.info("%s", reason)
            for pair in crew:
                if error.side in (pair.variant, pair.reference):
                    pair.stuck = reason
            break
        kept.add(session, number)
        made += 1
        for pair in crew:
            pair.add(session, number)
    return Stint(
        reference=plan.reference,
        variants=list(plan.variants),
        sessions=made,
        seconds=now() - began,
        reason=reason,
    )


def unsettled(pairs: Sequence[Pair], limits: Limits) -> list[Unsettled]:
    """The comparisons without a verdict, and about how much longer each would take."""
    reasons = {(pair.variant, pair.reference): pair.stuck for pair in pairs}
    found = []
    for standing in standings(pairs, limits.margin):
        if standing.decided:
            continue
        reason = reasons[standing.variant, standing.reference]
        found.append(
            Unsettled(
                variant=standing.variant,
                reference=standing.reference,
                seconds=None if reason else limits.seconds(standing),
                reason=reason,
            )
        )
    return sorted(found, key=lambda one: (one.seconds is None, one.seconds))
