"""How refinement spends a study's time, on a fake clock with sides of known speed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from fake_turns import LIMITS, ROUND, ROUNDS, START, FakeTurns, kept_in
from pair_builders import paired, session

from schemas.base import MOST_SECONDS
from schemas.results import Refinement, Session
from transformer_core.common.digests import forget_all
from transformer_core.decide.next_sessions import Plan, SoFar, standings, weights
from transformer_core.decide.refine import KeptStints, spend, unsettled
from transformer_core.measure.sessions import SessionEndedError
from transformer_core.run.statuses import Outcome


def verdicts(pairs: list[SoFar]) -> dict[str, str | None]:
    return {one.pair.variant: one.verdict for one in standings(pairs, LIMITS.margin)}


def go_on(
    turns: FakeTurns,
    pairs: list[SoFar],
    time: float,
    folder: Path,
    measure: Callable[[Plan, int], Session] | None = None,
    again: Callable[[], None] = lambda: None,
) -> float:
    """Spend this many more seconds; returns the unused rest."""
    end = turns.seconds + time
    kept, measure = kept_in(folder, pairs), measure or turns.measure
    spend(pairs, LIMITS, kept, measure, lambda: end - turns.now(), turns.now, again)
    return end - turns.now()


def test_decided_comparisons_get_no_time(tmp_path):
    turns = FakeTurns({"twice": 2.0, "equal": 1.0, "half": 0.5})
    pairs = turns.pairs()
    assert verdicts(pairs) == {"twice": "FASTER", "equal": "UNDECIDED", "half": "SLOWER"}
    go_on(turns, pairs, 0.0, tmp_path)
    assert turns.made == [], "without time nothing gets any"
    assert {pair.record().looks for pair in pairs} == {1}
    left = go_on(turns, pairs, 300.0, tmp_path)
    assert {name for names in turns.made for name in names} == {"equal"}
    assert verdicts(pairs)["equal"] == "SAME"
    assert left > 0, "nothing is undecided any more, so the rest of the time is not spent"


def test_the_time_limit_is_kept_and_comparisons_share_their_reference(tmp_path):
    turns = FakeTurns({f"v{n}": 1.0 for n in range(6)}, noise=0.2, between=0.03)
    pairs = turns.pairs()
    left = go_on(turns, pairs, 60.0, tmp_path)
    assert 0 <= left < LIMITS.together * (START + ROUNDS * ROUND), "too little for a session"
    most = max(len(names) for names in turns.made)
    assert most == LIMITS.together - 1, "as many as may run together with the reference"
    assert set(pairs[0].record().others) <= {f"v{n}" for n in range(1, 6)}


def test_important_comparisons_come_first(tmp_path):
    turns = FakeTurns({"a": 1.0, "b": 1.0, "c": 1.0}, noise=0.1)
    pairs = turns.pairs()
    pairs[1].weight = 100.0
    go_on(turns, pairs, 1000.0, tmp_path)
    assert turns.made[0][0] == "b"


def test_earlier_sessions_count_unless_they_are_foreign_or_damaged(tmp_path):
    turns = FakeTurns({"a": 1.0, "b": 1.01, "c": 0.99}, noise=0.2)
    pairs = turns.pairs()
    go_on(turns, pairs, 40.0, tmp_path)

    def read(key: str = "key") -> tuple[list[SoFar], KeptStints]:
        found = [SoFar(pair.first) for pair in pairs]
        kept = kept_in(tmp_path, found, key)
        kept.read_into(found)
        return found, kept

    again, kept = read()
    assert [pair.record() for pair in again] == [pair.record() for pair in pairs]
    assert kept.last == len(turns.made) > 0
    foreign, _ = read("another run spec")
    assert [(pair.added, pair.looks) for pair in foreign] == [([], 1)] * 3
    file = tmp_path / "session-1.json"
    file.write_text(file.read_text().replace('"stint": 1', '"stint": 2', 1))
    forget_all()
    damaged, _ = read()
    for pair in damaged:
        name = pair.pair.variant
        assert len(pair.added) == sum(name in names for names in turns.made[1:])


def test_sessions_added_to_a_first_round_that_was_measured_again_do_not_count(tmp_path):
    turns = FakeTurns({"a": 1.0}, noise=0.2)
    pairs = turns.pairs()
    go_on(turns, pairs, 40.0, tmp_path)
    assert pairs[0].added
    (again,) = turns.pairs()
    later = {"started": "2024-05-07T00:00:00+00:00"}
    sessions = [session.model_copy(update=later) for session in again.first.sessions]
    again = SoFar(again.first.model_copy(update={"sessions": sessions}))
    kept_in(tmp_path, [again]).read_into([again])
    assert again.added == []


@pytest.mark.parametrize("again", [True, False])
def test_a_side_that_ends_is_left_alone(tmp_path, again):
    turns, asked = FakeTurns({"a": 1.0, "dies": 1.0}), list[str]()

    def measure(plan: Plan, number: int) -> Session:
        if "dies" in plan.variants:
            turns.seconds += 1
            reason = Outcome(status="failed", reason="no memory", again=again)
            raise SessionEndedError("dies", reason)
        return turns.measure(plan, number)

    pairs = turns.pairs()
    go_on(turns, pairs, 60.0, tmp_path, measure, lambda: asked.append("again"))
    assert asked == ["again"] * again, "the next command tries again"
    assert verdicts(pairs) == {"a": "SAME", "dies": "UNDECIDED"}
    (open_one,) = unsettled(pairs, LIMITS)
    assert (open_one.variant, open_one.seconds) == ("dies", None)
    assert "no memory" in open_one.reason


def test_a_comparison_that_takes_too_long_for_any_study_says_so():
    alike = [session(1.0, number, noise=(0.25, -0.2) * 4) for number in (1, 2)]  # 1 on average
    (open_one,) = unsettled([SoFar(paired(sessions=alike))], replace(LIMITS, margin=0.0))
    assert open_one.seconds is None
    assert open_one.reason == "it would take more than a week"
    asked = {"asked_seconds": 3.6e5, "kept_seconds": 0, "stints": []}
    found = Refinement(**asked, ended_at_seconds=3.6e5, unsettled=[open_one])
    assert found.next_seconds(3.6e5) == MOST_SECONDS


@pytest.mark.slow
def test_the_time_needed_to_decide_is_about_right(tmp_path):
    factors = []
    for seed in range(3):
        turns = FakeTurns({"slightly": 1.05, "equal": 1.0, "more": 1.06}, seed, noise=0.1)
        pairs = turns.pairs()
        expected = sum(one.seconds or 0.0 for one in unsettled(pairs, LIMITS))
        before = turns.seconds
        go_on(turns, pairs, 1e4, tmp_path / str(seed))
        assert "UNDECIDED" not in verdicts(pairs).values()
        factors.append((turns.seconds - before) / expected)
    assert 0.4 < median(factors) < 2.5, factors


FALSE_ALARM_STUDIES = 30
FALSE_ALARMS_ALLOWED = 0.05 * FALSE_ALARM_STUDIES


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_repeated_looks_raise_no_false_alarm(monkeypatch, honest):
    """At most 5 % of studies call any equal side different. With intervals that ignore the looks
    it would be more, which shows that the test can fail."""

    class NotKept:
        last = last_stint = 0

        def add(self, session: Session, stint: int) -> None:
            self.last, self.last_stint = self.last + 1, stint

    if not honest:
        monkeypatch.setattr(SoFar, "looks", property(lambda pair: 0))
    alarms = 0
    for seed in range(FALSE_ALARM_STUDIES):
        if alarms > FALSE_ALARMS_ALLOWED:
            break
        turns = FakeTurns({f"v{n}": 1.0 for n in range(4)}, seed, noise=0.05, between=0.02)
        pairs = turns.pairs()
        end = turns.seconds + 200
        spend(pairs, LIMITS, NotKept(), turns.measure, lambda e=end, t=turns: e - t.now())
        alarms += not {"FASTER", "SLOWER"}.isdisjoint(verdicts(pairs).values())
    assert (alarms <= FALSE_ALARMS_ALLOWED) == honest, alarms


def test_weights(tmp_path):
    turns = FakeTurns({"fast": 1.2, "slow": 0.5, "claimed": 0.5, "other_model": 1.2})
    runs = [pair.first for pair in turns.pairs()]
    same = {name: name != "other_model" for name in ("single", *turns.truths)}
    found = weights(runs, [("claimed", "single")], "single", same)
    assert {variant: weight for (variant, _), weight in found.items()} == {
        "fast": 2.0,
        "slow": 1.0,
        "claimed": 2.0,
        "other_model": 0.5,
    }
