"""How much more measuring a comparison needs."""

from dataclasses import replace
from math import exp, log

import pytest

from schemas.results import Interval, Pair
from transformer_core.decide.next_sessions import Costs, Limits, Standing, distance, next_plan

MARGIN = 0.02
LIMITS = Limits(MARGIN, 8, 4)


def standing(ratio: float = 1.03, reach: float = 0.05, **changes: object) -> Standing:
    values = Standing(
        pair=Pair("fast", "single"),
        weight=1.0,
        ratio=Interval(median=ratio, low=ratio * exp(-reach), high=ratio * exp(reach), samples=20),
        verdict="UNDECIDED",
        variance=(reach / 3) ** 2,
        looks=1,
        sessions=2,
        together=10,
        of_a_round=0.04,
        between=1e-4,
        costs=Costs(start=1.0, round=0.05),
    )
    return replace(values, **changes)


def test_distance_is_to_the_nearest_verdict():
    assert distance(1.1, MARGIN) == pytest.approx(log(1.1))
    assert distance(1 / 1.1, MARGIN) == pytest.approx(log(1.1))
    assert distance(1.0, MARGIN) == pytest.approx(log(1.02))
    worst = min(distance(1 + ratio / 1000, MARGIN) for ratio in range(100))
    assert worst >= log(1.02) / 2, "nothing takes for ever"
    assert Limits(0.0, 8, 4).sessions(standing(1.0)) > 1, "without a margin it takes very long"


def test_number_of_sessions_still_needed():
    near, far = (LIMITS.sessions(standing(ratio=ratio, reach=0.5)) for ratio in (1.03, 1.06))
    assert near / far == pytest.approx(4, rel=0.1), "half the distance takes four times as much"
    known = LIMITS.sessions(standing(ratio=1.03, reach=0.06))
    assert 1 < known < near, "sessions that there are count"
    third = LIMITS.sessions(standing(ratio=1.03, reach=0.5, looks=3))
    assert near < third < 2 * near, "another look costs"
    assert LIMITS.sessions(standing(reach=0.0)) == 1, "a count needs one session"


def test_rounds_of_a_session_balance_both_variances():
    assert LIMITS.rounds(standing(between=0.0)) == 64
    assert LIMITS.rounds(standing(between=1.0)) == 8
    assert LIMITS.rounds(standing(of_a_round=0.02, between=1e-3)) == 20


def test_no_session_starts_that_does_not_fit():
    assert next_plan([standing()], 2.5, LIMITS) is None
    plan = next_plan([standing()], 3.0, LIMITS)
    assert plan.sessions == 1
    assert 2.8 <= plan.session_seconds <= 3.0


def test_decidable_comparisons_come_before_others():
    hopeless = standing(1.01, 0.5, pair=Pair("hopeless", "single"), weight=10.0)
    soon = standing(1.1, 0.12, pair=Pair("soon", "single"))
    plan = next_plan([hopeless, soon], 60.0, Limits(MARGIN, 8, 2))
    assert plan.variants == ("soon",)


def test_a_look_follows_a_fourth_more_sessions():
    """Also if one session should be enough: a comparison that varies more than others had a look
    after each of 90 sessions, and each widened its interval."""
    for sessions, more in ((100, 25), (5, 2)):
        nearly = standing(reach=0.0, sessions=sessions)
        plan = next_plan([nearly], 1e6, LIMITS)
        assert (LIMITS.sessions(nearly), plan.sessions) == (1, more)
