"""How the time of a command is spent, and what is recommended, on simulated sessions."""

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from traces import complete, kineto

from schemas.base import seconds_of
from transformer_core.trace.events.arrow import read_events
from transformer_core.tune import flow
from transformer_core.tune.answer import (
    Answer,
    Profiled,
    Tried,
    headline,
    in_words,
    markdown,
    text,
    useful,
)
from transformer_core.tune.coordinator import SHOWN, Program, Side, SideEnded
from transformer_core.tune.driver import CannotObserve
from transformer_core.tune.flow import ANY, Tuning, minutes
from transformer_core.tune.identity import digest, identity, keep
from transformer_core.tune.profiling import profiled, traces_of
from transformer_core.tune.results import LEAST_SESSIONS, set_ratios, together
from transformer_core.tune.sessions import (
    BEGAN,
    OWN,
    TURN_SECONDS,
    Budget,
    Measured,
    Outcome,
    Plan,
    Sessions,
    floors,
)
from transformer_core.tune.techniques import TECHNIQUES

PROGRAM = Program(("train.py",), Path())
FACTS = {"memory": {"peak": 1}, "device": "cpu", "dropout": False, "world": 1}
SAME = {"word": "same", "reason": "gradients differ by at most 1e-7"}
BF16, GC, FUSED = ("bf16",), ("gc_off",), ("fused_optimizer",)


@dataclass
class Simulated:
    """A machine on which techniques have these ``speeds``, and a session takes ``seconds``."""

    tuning: Tuning
    speeds: Mapping[str, float] = field(default_factory=dict)
    seconds: float | Callable[[Plan], float] = 0.0
    took: float = 0.0  # seconds from which the cost of the next session is learned
    noise: float = 0.0  # standard deviation of the logarithm of a round's time
    seed: int = 0
    plans: list[Plan] = field(default_factory=list)
    ready: Callable[[Side], bool] = lambda side: True
    certificate: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    needs: Mapping[str, int] = field(default_factory=dict)  # memory of techniques other than 1
    memory: int = 100  # of all changes of a session
    dies: str = OWN  # the copy that ends if there is less

    def run(self, plan: Plan, progress: object) -> Outcome:
        self.plans.append(plan)
        took = self.seconds(plan) if callable(self.seconds) else self.seconds
        self.tuning.budget.began -= took
        drawn = np.random.default_rng([self.seed, len(self.plans)])
        outcome = Outcome(plan.seed, 1, took=self.took)
        for side in plan.sides:
            speed = prod(self.speeds.get(name, 1.0) for name in side.techniques)
            times = np.exp(drawn.normal(0, self.noise, plan.rounds)) / speed
            certificate = self.certificate.get(side.name, SAME)
            ready = Measured(seconds=times.tolist(), certificate=certificate)
            outcome.sides[side.name] = ready if self.ready(side) else Measured("left out")
        names = [name for side in plan.sides for name in side.techniques]
        if sum(self.needs.get(name, 1) for name in names) > self.memory:
            for name in [self.dies] if self.dies in names else outcome.sides:
                outcome.sides[name] = Measured("oom", "there is too little memory")
        return outcome

    def screened(self, **gains: float) -> Answer:
        """An answer for which these techniques were tried, with these gains."""
        self.tuning.choice.noise = dict.fromkeys(gains, 0.0)
        tried = [Tried((name,), certificate=SAME, screened=gain) for name, gain in gains.items()]
        return Answer("train.py", tried=tried, facts=FACTS)

    def compared(self, *candidates: tuple[str, ...]) -> Answer:
        """The answer after a comparison of these, each of which seemed to gain."""
        found = self.screened(**{name: 1.2 for each in candidates for name in each})
        self.tuning._compare(found, [*candidates], False)
        return found

    @property
    def tried(self) -> list[list[str]]:
        """The techniques of each session."""
        return [[name for side in plan.sides for name in side.techniques] for plan in self.plans]


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """Makes a tuning whose sessions are simulated; all techniques apply."""

    def made(budget: float = 10_000, names: Any = None, verify: bool = True, **more: Any):
        tuning = Tuning(PROGRAM, tmp_path, print, budget, names, verify)
        tuning.sessions = Sessions(PROGRAM, tmp_path, "key", {"cycle": 1})
        tuning.sessions.step_seconds = tuning.budget.step = 0.05
        machine = Simulated(tuning, **more)
        monkeypatch.setattr(tuning.sessions, "run", machine.run)
        for name in names or ():
            monkeypatch.setattr(TECHNIQUES[name], "obstacle", lambda facts: None, raising=False)
        return machine

    return made


ALL = ("bf16", "fused_optimizer", "gc_off")


@pytest.mark.parametrize(
    ("noise", "chosen"),
    [
        (0.0, [BF16, ALL, ALL[:2], ALL[1:], ("bf16", "gc_off")]),
        (0.1, [BF16]),
        (0.5, [BF16]),
    ],
)
def test_gains_within_the_noise_are_not_candidates(noise, chosen, simulated):
    machine = simulated()
    answer = machine.screened(gc_off=1.02, bf16=1.3, sdpa_math=0.9, fused_optimizer=1.05)
    machine.tuning.choice.noise = dict.fromkeys(machine.tuning.choice.noise, noise)
    assert machine.tuning._chosen(answer) == chosen


BOTH = ("bf16", "gc_off")


@pytest.mark.parametrize(
    ("speeds", "recommended"),
    [
        ({"bf16": 1.3, "gc_off": 1.0}, BF16),
        ({"bf16": 1.3, "gc_off": 0.97}, BF16),
        ({"bf16": 1.3, "gc_off": 1.005}, BF16),  # within the margin in which speeds are the same
        ({"bf16": 1.3, "gc_off": 1.1}, BOTH),
        ({"bf16": 1.1, "gc_off": 1.1}, BOTH),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_technique_without_a_gain_is_not_recommended_with_others(
    speeds, recommended, seed, simulated
):
    machine = simulated(speeds=speeds, noise=0.02, seed=seed)
    answer = machine.compared(BF16, BOTH, GC)
    assert answer.find(BOTH).verdict == "FASTER"
    assert answer.recommended == recommended


def test_a_bundle_is_recommended_if_a_part_was_not_compared_and_the_answer_says_so(simulated):
    machine = simulated(speeds={"bf16": 1.2, "gc_off": 1.2}, noise=0.01)
    answer = machine.compared(BF16, ALL)
    assert answer.recommended == ALL
    for said in (text(answer), markdown(answer)):
        assert "without bf16 or without fused_optimizer or without gc_off" in said
    answer = machine.compared(BF16, BOTH, GC)
    assert "without" not in text(answer)
    assert "Against itself it is 1.00" in text(answer)
    assert machine.tuning.looks == 0, "nothing is left to compare"


def test_nothing_is_faster_by_luck_more_often_than_intervals_allow(simulated):
    found = []
    for seed in range(60):
        machine = simulated(noise=0.05, seed=seed)
        found.append(machine.compared(BF16, BOTH, GC).recommended)
    assert sum(map(bool, found)) <= 6  # 5 % of 60, and two standard deviations


def test_progress_shows_the_remaining_time_and_only_sessions_that_fit_begin(tmp_path):
    said: list[str] = []
    tuning = Tuning(PROGRAM, tmp_path, said.append, budget=1000)
    tuning.say("begin")
    budget = tuning.budget
    budget.start, budget.record, budget.step = 20.0, 2.0, 0.5
    tuning.expect(170)
    tuning.say("middle")
    tuning.expect(10_000)
    tuning.say("at most as long as asked for")
    assert said[:2] == ["begin", "middle (about 3 min left)"]
    assert said[2].endswith("(about 16 min left)")
    tuning.sessions = Sessions(tuning.program, tmp_path, "key")
    tuning.sessions.step_seconds = budget.step
    three, nine = (tuning.cost([ANY] * changes, 4) for changes in (3, 9))
    assert budget.start < three < nine
    # Sessions took twice as long as estimated, so the next estimates double.
    steps = tuning.sessions.timed_steps(Plan("", [], 0, 4, tuning.record))
    budget.learn(6, steps, 2 * three)
    assert tuning.cost([ANY] * 3, 4) == pytest.approx(2 * three)
    assert tuning.cost([ANY] * 9, 4) == pytest.approx(2 * nine)
    assert tuning._fitting([ANY] * 9, 4, [budget.left, 0.0]) == (9, 0.0)
    assert 0 < tuning._fitting([ANY] * 9, 4, [budget.left - 1.5 * nine, 0.0])[0] < 9
    assert tuning._fitting([ANY] * 9, 4, [budget.left]) == (0, 0.0)


def test_a_session_costs_no_more_than_the_copies_that_it_starts(simulated):
    machine = simulated()
    machine.tuning.budget.server = 20.0

    def cost(*names: str) -> float:
        return machine.tuning.cost([Side(name, (name,)) for name in names], 4)

    # The floor of 16 bits is a copy of its own.
    assert cost("gc_off") < cost("bf16") == cost("gc_off", "fused_optimizer")
    # Only a change of the environment starts a process that imports torch.
    assert cost("allocator_kept") == pytest.approx(20 + cost("gc_off"))


def test_the_time_of_the_first_import_counts_although_the_script_is_started_again(
    tmp_path, monkeypatch
):
    """A repetition, here of a script that ends early, finds a process that has imported torch."""
    ends = SideEnded("own", "", {"step": 20, "backwards": 20}, tmp_path)
    attempts = iter([(30.0, ends), (0.0, CannotObserve("enough"))])

    @contextmanager
    def session(*args: object, **more: object):
        waited, error = next(attempts)
        steps = Mock(side_effect=error)
        yield SimpleNamespace(waited=waited, facts=lambda side: {}, steps=steps)

    monkeypatch.setattr(flow, "session", session)
    tuning = Tuning(PROGRAM, tmp_path, print)
    with pytest.raises(CannotObserve, match="enough"):
        tuning.trust()
    assert tuning.budget.server == 30


def test_a_session_fits_into_the_memory_of_a_container(simulated, monkeypatch):
    answer = Answer("train.py", facts=FACTS | {"memory": {"peak": 1e9}})
    most = []
    for limit in (1e10, 1e9):
        monkeypatch.setattr(flow, "usable_memory_bytes", lambda limit=limit: limit)
        monkeypatch.setattr(flow.psutil, "virtual_memory", lambda: SimpleNamespace(available=1e12))
        most.append(simulated().tuning._most_sides(answer))
    assert most == [4, 1]


def test_ranks_that_share_the_memory_of_a_host_all_count(simulated, monkeypatch):
    monkeypatch.setattr(flow, "usable_memory_bytes", lambda: 2e10)
    monkeypatch.setattr(flow.psutil, "virtual_memory", lambda: SimpleNamespace(available=2e10))
    most = []
    for world in (1, 2):
        answer = Answer("train.py", facts=FACTS | {"memory": {"peak": 1e9}, "world": world})
        most.append(simulated().tuning._most_sides(answer))
    assert most == [9, 4]


def test_no_session_has_more_changes_than_fit_into_memory(simulated, monkeypatch):
    names = ["bf16", "fused_optimizer", "tf32", "gc_off", "compiled_blocks", "compiled_model"]
    machine = simulated(names=names)
    monkeypatch.setattr(machine.tuning, "_most_sides", lambda answer: 2)
    found = Answer("train.py", facts=FACTS)
    assert machine.tuning._screen(found, machine.tuning._applicable(found)) == []
    assert machine.tried[:4] == [names[:2], names[2:3], names[3:4], names[4:]]
    assert all(len(tried) <= 2 for tried in machine.tried)


FOUR = ["bf16", "fused_optimizer", "gc_off", "sdpa_math"]


@pytest.mark.parametrize(
    ("memory", "dies", "tried"),
    [
        (3, OWN, [FOUR, FOUR[:2], FOUR[2:]]),
        (3, "gc_off", [FOUR, ["gc_off"]]),
        (1, OWN, [FOUR, FOUR[:2], *([name] for name in FOUR)]),
        (100, OWN, [FOUR]),
    ],
)
def test_changes_are_tried_again_with_fewer_others_if_memory_is_too_short(
    memory, dies, tried, simulated, monkeypatch, capsys
):
    machine = simulated(names=FOUR, memory=memory, dies=dies)
    monkeypatch.setattr(flow, "FIRST", FOUR)
    answer = Answer("train.py", facts=FACTS)
    assert machine.tuning._screen(answer, machine.tuning._applicable(answer)) == []
    assert machine.tried[: len(tried)] == tried
    assert sorted(each.name for each in answer.tried) == sorted(FOUR)
    assert {each.status for each in answer.tried} == {"ok"}
    said = "there is too little memory for 4 changes at the same time"
    assert (said in capsys.readouterr().out) == (memory < 4)


def test_a_change_that_needs_all_memory_is_named_and_the_others_run_together_again(
    simulated, monkeypatch
):
    names = [*FOUR, "compiled_blocks", "compiled_model"]
    machine = simulated(names=names, memory=9, needs={"fused_optimizer": 10})
    monkeypatch.setattr(flow, "FIRST", FOUR)
    answer = Answer("train.py", facts=FACTS)
    assert machine.tuning._screen(answer, machine.tuning._applicable(answer)) == []
    assert machine.tried[:7] == [FOUR, FOUR[:2], *([name] for name in FOUR), names[4:]]
    (lacking,) = [each for each in answer.tried if each.status == "oom"]
    assert in_words(lacking) == "oom: there is too little memory"
    assert lacking.name == "fused_optimizer"


def test_an_answer_without_any_measurement_for_lack_of_memory_says_so():
    oom = [Tried(("bf16",), "oom"), Tried(("gc_off",), "oom"), Tried(("tf32",), "unsupported")]
    said = headline(Answer("train.py", tried=oom))
    assert said.startswith("Nothing was measured: there is too little memory for the script")
    assert "smaller batch" in said
    assert "Nothing was measured" not in headline(Answer("train.py", tried=[*oom, Tried(("x",))]))


@pytest.mark.parametrize(("memory", "found"), [(100, {BF16, GC, BOTH}), (3, {BF16}), (0, {BF16})])
def test_fewer_candidates_are_compared_if_memory_is_too_short(memory, found, simulated):
    machine = simulated(speeds={"bf16": 1.3}, noise=0.01, memory=memory)
    answer = machine.compared(BF16, BOTH, GC)
    assert {t.techniques for t in answer.tried if t.ratio or t.status == "oom"} == found
    assert answer.recommended == (BF16 if memory else ())
    assert memory or answer.find(BF16).status == "oom"


@pytest.mark.parametrize(("spare", "begun"), [(-1, False), (1, True)])
def test_a_comparison_leaves_the_time_to_run_what_is_recommended(spare, begun, simulated):
    machine = simulated()
    tuning, answer = machine.tuning, machine.screened(gc_off=1.2)
    answer.recommended = BF16
    needed = LEAST_SESSIONS * tuning.comparison([Side("gc_off", GC)]) + tuning._verifying()
    tuning.budget.seconds += needed + spare - tuning.budget.left
    tuning._compare(answer, [GC], False)
    assert bool(machine.plans) == begun


def test_a_session_later_without_memory_does_not_undo_a_comparison(simulated):
    machine = simulated(speeds={"bf16": 1.3}, noise=0.01)

    def took(plan: Plan) -> float:
        machine.memory = 100 if len(machine.plans) < 4 else 0
        return 0.0

    machine.seconds = took
    assert machine.compared(BF16).recommended == BF16
    assert len(machine.plans) == 4


@pytest.mark.parametrize(("gain", "all_tried"), [(0.9, True), (1.01, True), (1.5, False)])
def test_time_too_short_for_a_comparison_goes_to_the_remaining_techniques(
    gain, all_tried, simulated
):
    names = ["bf16", "gc_off", "sdpa_math"]
    speeds = {"bf16": gain, "sdpa_math": 0.8}
    machine = simulated(100, names, speeds=speeds, seconds=35)
    tuning, budget = machine.tuning, machine.tuning.budget
    budget.start, budget.record = 6.0, 1.0
    tuning.sessions.step_seconds = budget.step = 0.1
    found = Answer("train.py", facts=FACTS)
    waiting = tuning._screen(found, tuning._applicable(found))
    assert (waiting == []) == all_tried
    found.tried += [Tried((side.name,), "left out") for side in waiting]
    assert all(tried.screened for tried in found.tried) == all_tried
    # What was left out, and the sessions of a comparison.
    sessions = 4 * tuning.comparison([ANY] * 3) + 3 * tuning.comparison([ANY])
    needed = budget.gone + tuning.cost([ANY] * len(waiting), 4) * bool(waiting) + sessions
    assert tuning._needed(found) == pytest.approx(needed + 10, rel=0.01)


def test_too_short_a_time_for_anything_names_the_time_that_is_needed(simulated, monkeypatch):
    machine = simulated(200, ["bf16", "gc_off"])
    tuning = machine.tuning
    monkeypatch.setattr(tuning, "trust", lambda: Answer("train.py", facts=FACTS))
    monkeypatch.setattr(tuning, "_profile", lambda answer: None)
    monkeypatch.setattr(tuning, "cost", lambda changes, rounds: 300.0 * len(changes))
    said = headline(tuning.run())
    assert machine.plans == []
    in_study = "(--time 90min, or time: 90min in the study)"
    assert said.endswith(f"With 10min it is tried, with 90min all are tried {in_study}.")
    left_out = [Tried(("bf16",), "left out")]
    equal = Answer("train.py", tried=left_out, needs="5min", least="5min")
    assert "first technique. With 5min all are tried (--time 5min" in headline(equal)


@pytest.mark.parametrize(
    ("sessions", "said"), [(1, "about 1.25 times as fast"), (3, "1.25 [1.25, 1.25] times as fast")]
)
def test_one_session_gives_no_interval(sessions, said):
    """How much processes differ is unknown, so its interval would be too narrow."""
    times = {"own": 1.25, "again": 1.25, "gc_off": 1.0}
    sides = {name: Measured(seconds=[t] * 4, certificate=SAME) for name, t in times.items()}
    outcomes = [Outcome(0, 1, sides)] * sessions
    tried = together(Side("gc_off", GC), outcomes)
    set_ratios([tried], outcomes, 0.03)
    assert in_words(tried).startswith(said)
    assert tried.verdict == ("FASTER" if sessions > 1 else "")


@pytest.mark.parametrize(
    ("seconds", "words"), [(10, "5min"), (301, "10min"), (2800, "60min"), (5401, "120min")]
)
def test_the_time_that_is_needed_is_round(seconds, words):
    assert minutes(seconds) == words
    assert seconds_of(words) >= seconds


def test_a_technique_left_out_of_its_session_is_tried_if_no_other_pays(simulated, monkeypatch):
    """Time was kept for a comparison that nothing needs."""
    machine = simulated(100, ["bf16", "fused_optimizer"])
    fits = lambda changes, *_: (min(len(changes), 1), 0.0)  # noqa: E731
    monkeypatch.setattr(machine.tuning, "_fitting", fits)
    found = Answer("train.py", facts=FACTS)
    assert machine.tuning._screen(found, machine.tuning._applicable(found)) == []
    assert machine.tried == [["bf16"], ["fused_optimizer"]]


def compared_alone(tuning: Tuning, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """The answer of a run that tries and compares techniques, and does nothing else."""
    monkeypatch.setattr(tuning, "trust", lambda: Answer("train.py", facts=FACTS))
    for method in ("_change", "_profile"):
        monkeypatch.setattr(tuning, method, lambda answer: None)
    return tuning.run()


@pytest.mark.parametrize(
    ("budget", "uncompared", "recommended"),
    [(88, ["fused_optimizer"], ()), (135, [], ("fused_optimizer",))],
)
def test_time_left_after_a_comparison_without_a_gain_goes_to_the_next_techniques(
    budget, uncompared, recommended, simulated, monkeypatch
):
    machine = simulated(budget, ["bf16", "fused_optimizer"], noise=0.005)
    tuning = machine.tuning

    def took(plan: Plan) -> float:
        lucky = plan.name == "screen-1"
        machine.speeds = {"bf16": 1.3 if lucky else 1.0, "fused_optimizer": 1.2}
        changes = [side for side in plan.sides if side.techniques]
        return 0.7 * tuning.cost(changes, plan.rounds)  # sessions take less time than expected

    machine.seconds = took
    found = compared_alone(tuning, monkeypatch)
    assert tuning.budget.gone < budget
    compared = [t.name for t in found.tried if t.ratio]
    assert compared == ["bf16"] + ["fused_optimizer"] * bool(recommended)
    assert (found.uncompared, found.recommended) == (uncompared, recommended)
    assert ("the comparison of fused_optimizer" in found.left_out) == bool(uncompared)
    assert ("fused_optimizer trains the same model, and was about" in headline(found)) == bool(
        uncompared
    )


@pytest.mark.parametrize(("gain", "kept"), [(1.5, 70.0), (1.0, 0.0)])
def test_a_slow_change_may_take_the_time_of_a_comparison_that_nothing_needs(gain, kept, simulated):
    machine = simulated(ready=lambda side: side.name != "compiled_blocks", took=50)
    tuning = machine.tuning
    answer = machine.screened(bf16=gain)
    before = tuning.comparison([ANY])
    tuning._try(answer, [Side("compiled_blocks", ("compiled_blocks",))], 4, 70.0)
    assert tuning.sessions.later == kept
    assert tuning.comparison([ANY]) == before, "its session ended early"
    tuning._try(answer, [Side("gc_off", GC)], 4, 70.0)
    assert tuning.comparison([ANY]) != before


@pytest.mark.parametrize(("gain", "compared"), [(1.1, False), (1.3, True)])
def test_a_technique_is_compared_in_place_of_a_recommended_one_only_if_it_seems_better(
    gain, compared, simulated
):
    machine = simulated()
    answer = machine.screened(allocator_kept=1.2, allocator_huge_pages=gain)
    machine.tuning.choice.compared, answer.recommended = {"allocator_kept"}, ("allocator_kept",)
    assert bool(machine.tuning._chosen(answer)) == compared


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (5, None),
        (15, "about 1.00 times as fast, the same"),
        (45, "1.00 [1.00, 1.00] times as fast"),
    ],
)
def test_one_session_of_the_changed_script_is_enough_for_its_certificate(
    left, said, simulated, monkeypatch
):
    machine = simulated(left + 10, seconds=10)
    monkeypatch.setattr(machine.tuning, "comparison", lambda changes: 10.0)
    source = SimpleNamespace(diff=lambda: "a diff", files=lambda: {Path("train.py"): ""}, base="")
    monkeypatch.setattr(flow.Source, "of", lambda facts: source)
    monkeypatch.setattr(TECHNIQUES["bf16"], "edit", lambda *_: True, raising=False)
    found = machine.screened(bf16=1.2)
    found.recommended = BF16
    machine.tuning._change(found)
    assert found.left_out == ["the run of the changed script"] * (said is None)
    assert said is None or in_words(found.patched).startswith(said)


@pytest.mark.parametrize(
    ("late", "compared"),
    [(1, ["bf16"]), (2, ["bf16"]), (3, ["bf16", "bf16+compiled_blocks", "compiled_blocks"])],
)
def test_a_change_that_is_late_in_a_comparison_leaves_the_others_their_interval(
    late, compared, simulated, monkeypatch
):
    machine = simulated()
    tuning = machine.tuning
    tuning.sessions.deadline = 1000.0
    deadlines: list[float] = []

    def took(plan: Plan) -> float:
        deadlines.append(tuning.sessions.deadline - tuning.sessions.later)
        return 0.0

    machine.seconds = took
    machine.ready = lambda s: len(deadlines) != late or "compiled_blocks" not in s.techniques
    monkeypatch.setattr(tuning, "comparison", lambda changes: 10.0 * len(changes))
    found = machine.compared(BF16, ("bf16", "compiled_blocks"), ("compiled_blocks",))
    assert deadlines == [970.0, 1000.0, 1000.0, 1000.0]
    assert sorted(t.name for t in found.tried if t.ratio) == compared
    assert tuning.choice.compared == {name for each in compared for name in each.split("+")}
    assert all(t.status == "ok" for t in found.tried)


def test_each_comparison_names_its_own_missing_sessions(simulated, monkeypatch):
    machine = simulated(165, verify=False, seconds=40)
    monkeypatch.setattr(
        machine.tuning, "comparison", lambda changes: [15.0, 50.0][len(changes) - 1]
    )
    found = Answer("train.py", facts=FACTS)
    for candidates in ([BF16, GC], [FUSED]):
        machine.tuning._compare(found, candidates, False)
    assert found.left_out == [
        "1 of 4 sessions with bf16 and gc_off",
        "2 of 4 sessions with fused_optimizer",
    ]


def test_the_report_gets_more_time_where_the_command_starts_slowly(monkeypatch):
    left = []
    for seconds in (2, 30):
        monkeypatch.setenv(BEGAN, f"{time.time() - seconds - 5} {time.time() - seconds}")
        left.append(Budget(100).left)
    assert left == pytest.approx([100 - 7 - 10, 100 - 35 - 30], abs=1)


def test_other_dropout_masks_are_no_verdict_if_dropout_cannot_be_off(simulated, monkeypatch):
    tuning = simulated().tuning
    failed = Outcome(0, sides={"compiled_blocks": Measured("failed", "the compiler gave up")})
    monkeypatch.setattr(tuning.sessions, "run", lambda plan, progress: failed)
    name = "compiled_blocks"
    plan = Plan("screen-1", [Side(name, (name,))], 0, 4)
    different = Measured(certificate={"word": "different", "reason": "a loss is 1e-2 off"})
    answer = Answer("train.py", facts={"dropout": ["Dropout"]})
    monkeypatch.setattr(tuning, "session", lambda *_: Outcome(0, sides={name: different}))
    found = tuning._judged(plan, "", answer)
    certificate = found.sides[name].certificate
    assert certificate["word"] == "undecided"
    assert "a loss is 1e-2 off; different dropout masks may explain it" in certificate["reason"]


def test_a_difference_is_looked_at_without_dropout_when_a_technique_is_first_tried(simulated):
    machine = simulated()

    def took(plan: Plan) -> float:
        word = "different" if plan.dropout else "same"
        machine.certificate = {"bf16": SAME | {"word": word, "dropout": plan.dropout}}
        return 0.0

    machine.seconds = took
    answer = Answer("train.py", facts=FACTS | {"dropout": ["Dropout"]})
    for _ in range(2):
        machine.tuning._try(answer, [Side("bf16", BF16)], 4, 0.0)
    names = [plan.name for plan in machine.plans]
    assert names == ["screen-1", "screen-1-no-dropout", "screen-2"]
    assert useful(answer.find(BF16))


def test_a_profile_has_a_breakdown_or_says_why_not(tmp_path):
    trace = tmp_path / "trace.json"

    def found() -> Profiled:
        run = SimpleNamespace(profile=lambda side, count: [trace])
        return profiled(BF16, traces_of(run, "bf16", 3, tmp_path / "profiles"))

    for _ in range(2):  # a second command takes the place of the first one's
        kineto(trace, [complete("cpu_op", "aten::mm", 0, 10)])
        assert found().breakdown
        assert read_events(tmp_path / "profiles" / "events.parquet")[1].format == "kineto"
    trace.write_text("no trace")
    broken = found()
    assert broken.breakdown is None
    assert "trace.json" in broken.reason


def test_no_side_is_at_the_same_place_in_all_rounds(tmp_path):
    """If the script came first or last in all rounds, a disturbance between would hit all others alone."""
    sides = [Side(name) for name in ("own", "again", "a", "b", "c")]
    taken: list[str] = []
    run = SimpleNamespace(sides=sides, failed={}, steps=None)
    run.attempt = lambda work, name, steps: taken.append(name) or 1.0
    orders = []
    for seed in (1000, 2000):
        plan = Plan("compare", sides, seed, 8)
        found = Outcome(seed, sides={side.name: Measured() for side in sides})
        taken.clear()
        Sessions(PROGRAM, tmp_path, "key")._rounds(run, plan, found, print)
        orders.append([taken[at : at + 5] for at in range(5, 45, 5)])
    assert orders[0] != orders[1]
    for rounds in orders:
        assert {*map(frozenset, rounds)} == {frozenset(side.name for side in sides)}
        assert all(len({names.index(side.name) for names in rounds}) > 2 for side in sides)


@pytest.mark.parametrize(
    ("first", "noise", "budget", "again"),
    [(0.95, 0.1, 10_000, True), (0.8, 0.01, 10_000, False), (0.95, 0.1, 60, False)],
)
def test_a_technique_without_luck_is_tried_again_unless_its_rounds_exclude_a_gain(
    first, noise, budget, again, simulated
):
    machine = simulated(budget, ["bf16"], noise=noise, seed=1)

    def took(plan: Plan) -> float:
        machine.speeds = {"bf16": first if plan.name == "screen-1" else 1.5}
        return 0.0

    machine.seconds = took
    answer = Answer("train.py", facts=FACTS)
    machine.tuning._screen(answer, machine.tuning._applicable(answer))
    assert machine.tried == [["bf16"]] * (1 + again)
    (tried,) = answer.tried
    assert (machine.tuning._chosen(answer) == [BF16]) == (tried.gain > 1.05) == again
    machine.tuning._screen(answer, [])
    assert len(machine.tried) == 1 + again, "two sessions are enough"


@pytest.mark.parametrize(("budget", "recommended"), [(142, ()), (190, FUSED)])
def test_time_left_after_a_comparison_goes_to_a_second_look(
    budget, recommended, simulated, monkeypatch
):
    machine = simulated(budget, ["bf16", "fused_optimizer"])
    tuning = machine.tuning

    def took(plan: Plan) -> float:
        first = plan.name == "screen-1"
        machine.noise = 0.1 if first else 0.005
        machine.speeds = {"bf16": 1.5 if first else 1.0, "fused_optimizer": 0.99 if first else 1.3}
        return 0.7 * tuning.cost([side for side in plan.sides if side.techniques], plan.rounds)

    machine.seconds = took
    found = compared_alone(tuning, monkeypatch)
    assert tuning.budget.gone < budget
    assert machine.plans[1].name == "compare-1", "there was no time before"
    assert found.recommended == recommended


def test_rounds_take_a_third_of_a_session_in_which_techniques_are_tried_if_time_allows(simulated):
    rounds = []
    for budget, start in ((10_000, 2.0), (10_000, 20.0), (90, 20.0)):
        machine = simulated(budget, ["bf16", "fused_optimizer"])
        machine.tuning.budget.start = start
        answer = Answer("train.py", facts=FACTS)
        machine.tuning._screen(answer, machine.tuning._applicable(answer))
        rounds.append(machine.plans[0].rounds)
    assert rounds[0] < rounds[1] > rounds[2] == 4
    assert machine.tuning.cost([ANY] * 2, 0) > 2 * rounds[1] * 4 * TURN_SECONDS


def test_sessions_of_other_code_script_torch_or_threads_are_measured_again(tmp_path, monkeypatch):
    script = tmp_path / "train.py"

    def key(code: str, text: str, record: int | None = None) -> str:
        script.write_text(text)
        program = Program(("train.py",), tmp_path)
        return digest(identity(program, record, code))

    assert key("a", "x = 1") == key("a", "x = 1")
    found = {key("a", "x = 1"), key("b", "x = 1"), key("a", "x = 2"), key("a", "x = 1", record=4)}
    monkeypatch.setattr("torch.get_num_threads", lambda: 1000)
    found.add(key("a", "x = 1"))
    monkeypatch.setattr("torch.__version__", "1.0")
    found.add(key("a", "x = 1"))
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so")
    found.add(key("a", "x = 1"))
    assert len(found) == 7
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert key("a", "x = 1") in found


def test_why_earlier_sessions_are_measured_again_is_said(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("x = 1")

    def changed() -> list[str]:
        program = Program(("train.py", "--log=log.txt"), tmp_path)
        return keep(identity(program, None, ""), tmp_path)

    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert changed() == changed() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    (tmp_path / "train.py").write_text("x = 2")
    (tmp_path / "log.txt").touch()
    assert changed() == [
        "the file log.txt",
        "the file train.py",
        "CUDA_VISIBLE_DEVICES is 1",
        "MALLOC_ARENA_MAX is not set",
    ]


def test_a_session_is_used_again_although_its_steps_took_another_time(tmp_path, monkeypatch):
    """How many rounds and recorded steps there is time for depends on the seconds of a step."""
    sessions, done = Sessions(PROGRAM, tmp_path, "key"), []
    monkeypatch.setattr(sessions, "_whole", lambda plan, _: done.append(plan) or Outcome(plan.seed))
    for seed, rounds, record in ((0, 4, 6), (0, 8, 5), (1, 8, 5)):
        sessions.run(Plan("screen-1", [Side("own")], seed, rounds, record), print)
    assert [plan.seed for plan in done] == [0, 1]


def test_messages_say_which_copy_rounds_to_16_bits():
    _, floor = floors([Side("bf16", BF16)])
    assert SHOWN[floor.name] == "its copy with rounding to bfloat16"
