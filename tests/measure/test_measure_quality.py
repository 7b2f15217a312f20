"""Time to quality: two trainings take turns until both reach the required BLEU."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_training import small_setup, small_spec
from tokenizers import Tokenizer, models

from schemas.config.measurement import Quality
from schemas.results.common import BASELINE, BEST
from transformer_core.common.endings import failures
from transformer_core.measure import quality as job
from transformer_core.measure.quality import Look, Runner, Seen, for_race, look, race
from transformer_core.measure.sessions import SessionEndedError, Side
from transformer_core.run.coordinator import Report, Turn
from transformer_core.run.statuses import Outcome
from transformer_core.training.evaluation import validation_loss

GOAL = Quality(bleu=50, steps=100, every=10, max_pairs=20)


class Track:
    """Sessions whose sides train at known speeds and learn at known rates."""

    folder: Path
    reason: Outcome

    def __init__(self, per_step: dict[str, tuple[float, float]], breaks: str | None = None) -> None:
        self.per_step = per_step
        self.breaks = breaks
        self.asked: list[tuple[str, Any]] = []
        self.steps = dict.fromkeys(per_step, 0)
        self.provenance: dict[str, Any] = {}
        self.progress = lambda text: None

    @contextmanager
    def gathered(self) -> Any:
        yield self.ask, {}

    def provenances(self, ask: Any) -> dict[str, Any]:
        return {}

    def ask(self, side: Side, task: Any) -> list[Any]:
        name = side.name
        self.asked.append((name, task))
        seconds, bleu = self.per_step[name]
        if isinstance(task, Turn):
            if name == self.breaks and self.steps[name]:
                raise SessionEndedError(name, self.reason)
            self.steps[name] += task.steps
            # The slowest rank counts.
            return [Report(seconds * task.steps * share, 0, 0, 0.0) for share in (0.5, 1.0)]
        losses = {50: 2.5, 60: 1.9}
        score = min(100.0, bleu * self.steps[name]) if task.pairs else None
        return [Seen(losses.get(self.steps[name], 3.0), score, samples=[])]


def runners(goal: Quality = GOAL) -> list[Runner]:
    spec = for_race(small_spec(), goal)
    return [Runner(Side(BASELINE, spec), ["single"]), Runner(Side(BEST, spec), ["fast"])]


def outcome(track: Track, goal: Quality = GOAL) -> Any:
    sides = runners(goal)
    race(track, sides, goal)
    return job._result(goal, *job._outcome(sides, goal), sides, track, 1.0)


def test_the_times_until_both_arrive_are_compared_and_the_first_waits_for_the_other():
    track = Track({BASELINE: (0.2, 0.9), BEST: (0.1, 3.0)})
    found = outcome(track)
    turns = [name for name, task in track.asked if isinstance(task, Turn)]
    assert turns == [BASELINE, BEST, BEST, BASELINE] + [BASELINE] * 4
    assert found.status == "arrived"
    # 50 BLEU are reached after 56 and 17 steps, and seen after 60 and 20.
    assert [side.arrived.step for side in found.sides] == [60, 20]
    assert [side.arrived.seconds for side in found.sides] == pytest.approx([12.0, 2.0])
    assert found.time_ratio == pytest.approx(1 / 6)


def test_the_time_to_a_loss_is_interpolated():
    track = Track({BASELINE: (0.2, 1.0), BEST: (0.1, 1.0)})
    found = outcome(track, Quality(loss=2.0, steps=100, every=10))
    assert all(task.pairs == 0 for _, task in track.asked if isinstance(task, Look))
    # The losses after 50 and 60 steps are 2.5 and 1.9.
    assert found.reason == "all reach a validation loss of 2"
    assert [side.arrived.step for side in found.sides] == [58, 58]
    seconds = [side.arrived.seconds for side in found.sides]
    assert seconds == pytest.approx([175 / 15, 175 / 30])
    assert found.time_ratio == pytest.approx(0.5)


def test_a_race_ends_with_its_steps_and_says_what_would_help():
    track = Track({BASELINE: (0.1, 0.2), BEST: (0.1, 0.3)})
    found = outcome(track)
    assert track.steps == {BASELINE: 100, BEST: 100}
    assert (found.status, found.time_ratio) == ("not_arrived", None)
    assert "20.0 BLEU and 30.0 BLEU after 100 steps" in found.reason
    assert "quality.budget" in found.reason


def test_without_time_a_race_ends_before_its_first_turn():
    goal = GOAL.model_copy(update={"budget": 0.0})
    found = outcome(Track({BASELINE: (0.1, 1.0), BEST: (0.1, 1.0)}), goal)
    assert (found.status, [side.looks for side in found.sides]) == ("not_arrived", [[], []])


@pytest.mark.parametrize(("status", "again"), [("oom", False), ("failed", False), ("failed", True)])
def test_a_side_that_ends_early_keeps_its_looks_and_may_be_tried_again(tmp_path, status, again):
    track = Track({BASELINE: (0.1, 0.5), BEST: (0.1, 0.5)}, breaks=BEST)
    track.folder = tmp_path / "quality"
    track.reason = Outcome(status=status, reason="lost", again=again)
    found = outcome(track)
    assert (found.status, found.reason) == ("failed", "best: lost")
    best = found.sides[1]
    assert (best.status, [look.step for look in best.looks]) == (status, [10])
    assert failures(tmp_path / "quality.json") == again


def test_a_race_is_a_whole_number_of_turns_with_its_own_schedule():
    goal = Quality(
        bleu=50, steps=105, every=10, schedule={"kind": "linear", "peak": 0.002, "warmup": 50}
    )
    training = for_race(small_spec(), goal).training
    assert (training.steps, training.validate_every, training.checkpoint_every) == (100, 0, 0)
    assert training.schedule.warmup == 50
    assert for_race(small_spec(), GOAL).training.schedule == small_spec().training.schedule


def test_an_evaluation_does_not_change_the_training():
    setup = small_setup(small_spec())
    store = setup.validation_store
    names = {f"w{number}": number for number in range(store.manifest.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="w0"))
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    setup.module.train()
    seen = look(setup, tokenizer, Look(pairs=5))
    assert setup.model.training
    assert seen.loss == validation_loss(setup)
    assert 0 <= seen.bleu <= 100
    assert [sample.reference for sample in seen.samples] == [
        tokenizer.decode(ids) for ids in store.target_rows([0, 1, 2])
    ]
    assert all((before[name] == value).all() for name, value in setup.model.state_dict().items())


def test_the_averages_of_an_optimizer_that_keeps_some_are_evaluated(tmp_path, monkeypatch):
    setup = small_setup(small_spec())
    answers: list[Any] = []
    monkeypatch.setattr(job, "take_turns", lambda *given: answers.append(given[-1]))
    job.work(SimpleNamespace(data=tmp_path, spec=setup.spec), None)
    weight = next(setup.model.parameters()).data
    average, current = weight * 2, weight.clone()
    setup.optimizer.eval = lambda: weight.copy_(average)
    setup.optimizer.train = lambda: weight.copy_(current)
    loss = answers[0](setup, Look(0)).loss
    assert (weight == current).all()
    assert loss != validation_loss(setup)
    weight.copy_(average)
    assert loss == validation_loss(setup)


@pytest.mark.parametrize("goals", [{}, {"bleu": 20, "loss": 4}])
def test_a_race_has_one_goal(goals):
    with pytest.raises(ValueError, match=r"neither bleu nor loss|both bleu and loss"):
        Quality(**goals)


def test_every_side_of_a_race_has_one_process(tmp_path, monkeypatch):
    players: list[str] = []

    def seen(sessions: Any, *_: Any) -> None:
        players.extend(side.name for side in sessions.players)

    monkeypatch.setattr(job, "race", seen)
    found: Any = SimpleNamespace(status="baseline")
    also = [small_spec(variant=name) for name in "abc"]
    job.time_to_quality(small_spec(), found, also, GOAL, tmp_path, tmp_path, "again")
    assert sorted(players) == ["a", "b", BASELINE, "c"]


def test_replicas_that_train_apart_are_judged_when_they_have_met(tmp_path, monkeypatch):
    asked: list[tuple[int, list[int]]] = []

    def seen(_: Any, runners: list[Runner], goal: Quality) -> None:
        asked.append((goal.every, [runner.side.spec.training.steps for runner in runners]))

    monkeypatch.setattr(job, "race", seen)
    found: Any = SimpleNamespace(status="baseline")
    also = [small_spec(variant="apart", parallel={"kind": "local_steps", "every": 6})]
    job.time_to_quality(small_spec(), found, also, GOAL, tmp_path, tmp_path, "again")
    assert asked == [(6, [96, 96])]


def test_without_a_recommendation_nothing_runs(tmp_path):
    found: Any = SimpleNamespace(status="not_searched", reason="search.budget is 0")
    result = job.time_to_quality(small_spec(), found, [], GOAL, tmp_path, tmp_path, "again")
    assert (result.status, result.sides, result.reason) == ("not_run", [], found.reason)
    assert list(tmp_path.iterdir()) == []
