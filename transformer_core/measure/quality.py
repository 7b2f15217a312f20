"""Time that the baseline and the recommendation need to reach the required quality.

A speed-up tells how much sooner the same steps are done, a certificate that they are the same steps;
this shows their combined effect. The two train in turns until both arrive, so that a drift of the
machine affects both. There is always a result: if a side fails, it says why.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any, ClassVar

from schemas.config.measurement import Comparing, Quality
from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation
from schemas.results import SearchResult, Translation
from schemas.results.common import BASELINE, BEST
from schemas.results.runs import QualityLook, QualityResult, QualitySide, reaching
from transformer_core.common.digests import check_all, write_result
from transformer_core.common.endings import count_failure, reproducing_command
from transformer_core.common.folder_locks import workplace
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer
from transformer_core.measure.sessions import Ask, SessionEndedError, Sessions, Side, TurnsOrder
from transformer_core.measure.turns_worker import refuse, take_turns
from transformer_core.run.coordinator import Task, Turn
from transformer_core.run.order import TrainingJob
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import end_on_request
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup
from transformer_core.training.evaluation import averaged, validation_loss
from transformer_core.training.translate import bleu_in, translate_rows

SAMPLES = 3
"""Number of translations that an evaluation shows."""


class RaceOrder(TurnsOrder):
    """Order to train in turns, and to report between them how well the model translates."""

    work = "transformer_core.measure.quality"


def time_to_quality(
    baseline: RunSpec,
    found: SearchResult,
    also: Sequence[RunSpec],
    goal: Quality,
    data: Path,
    folder: Path,
    command: str,
) -> QualityResult:
    """Runs the trainings, unless there is nothing to compare with the baseline."""
    if found.status != "found" and not also:
        return _result(goal, "not_run", found.reason)
    began = time.monotonic()
    asked = [(BASELINE, baseline, [baseline.variant])]
    if found.status == "found":
        asked.append((BEST, found.spec, found.parts))
    asked += [(spec.variant, spec, [spec.variant]) for spec in also]
    # Replicas that train apart are judged when they have met.
    period = lcm(*(getattr(spec.parallel, "every", 1) for _, spec, _ in asked))
    goal = goal.model_copy(update={"every": period * max(1, goal.every // period)})
    runners = [
        Runner(Side(name, for_race(spec, goal), order=RaceOrder), parts)
        for name, spec, parts in asked
    ]
    sides = [runner.side for runner in runners]
    tell = partial(log.info, "quality: %s")
    with Sessions.opened(sides, Comparing(), data, folder, command, tell) as sessions:
        sessions.copies = False
        race(sessions, runners, goal)
    status, reason = _outcome(runners, goal)
    return _result(goal, status, reason, runners, sessions, time.monotonic() - began)


@dataclass
class Runner:
    """A side during the race."""

    side: Side
    parts: Sequence[str]
    looks: list[QualityLook] = field(default_factory=list)
    samples: list[Translation] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome(status="ok", reason=None))

    def arrived(self, goal: Quality) -> QualityLook | None:
        """When it first reached the required quality; None if it has not yet."""
        found = next((look for look in self.looks if reaches(look, goal)), None)
        if found is None or goal.loss is None:
            return found
        exact = reaching(self.looks, goal.loss)
        if exact is None:
            return found
        return QualityLook(step=round(exact[0]), seconds=exact[1], loss=goal.loss, bleu=None)

    def on_the_way(self, goal: Quality) -> bool:
        """Whether it has steps left and has not reached the goal."""
        done = self.looks[-1].step if self.looks else 0
        return self.arrived(goal) is None and done + goal.every <= self.side.spec.training.steps

    def run(self, ask: Ask, goal: Quality) -> QualityLook:
        """Trains for a turn, then evaluates the model."""
        reports = ask(self.side, Turn(0, goal.every))
        seen: Seen = ask(self.side, Look(translated(goal)))[0]
        before = self.looks[-1] if self.looks else None
        self.looks.append(
            QualityLook(
                step=(before.step if before else 0) + goal.every,
                seconds=(before.seconds if before else 0.0) + max(r.seconds for r in reports),
                loss=seen.loss,
                bleu=seen.bleu,
            )
        )
        self.samples = seen.samples
        return self.looks[-1]

    def record(self, goal: Quality, baseline: "Runner") -> QualitySide:
        """The record of this side."""
        mine, theirs = self.arrived(goal), baseline.arrived(goal)
        return QualitySide(
            name=self.side.name,
            parts=list(self.parts),
            status=self.outcome.status,
            reason=self.outcome.reason,
            looks=self.looks,
            arrived=mine,
            time_ratio=mine.seconds / theirs.seconds if mine and theirs else None,
            samples=self.samples,
        )


def reaches(look: QualityLook, goal: Quality) -> bool:
    """Whether an evaluation found the required quality."""
    if goal.bleu is not None:
        return look.bleu is not None and look.bleu >= goal.bleu
    return goal.loss is not None and look.loss <= goal.loss


def translated(goal: Quality) -> int:
    """Pairs to translate at each evaluation."""
    return goal.max_pairs if goal.bleu is not None else 0


def named(goal: Quality) -> str:
    """The required quality in words."""
    return f"{goal.bleu:g} BLEU" if goal.bleu is not None else f"a validation loss of {goal.loss:g}"


def _score(look: QualityLook) -> float:
    """The higher, the better."""
    return -look.loss if look.bleu is None else look.bleu


def _words(look: QualityLook) -> str:
    return f"loss {look.loss:.3f}" if look.bleu is None else f"{look.bleu:.1f} BLEU"


def _outcome(runners: Sequence[Runner], goal: Quality) -> tuple[str, str]:
    """The status of the race, and a sentence that describes it."""
    for runner in runners:
        if runner.outcome.status != "ok":
            return "failed", f"{runner.side.name}: {runner.outcome.reason}"
    away = [runner for runner in runners if not runner.arrived(goal)]
    if not away:
        return "arrived", f"all reach {named(goal)}"
    best = [_words(max(runner.looks, key=_score)) for runner in away if runner.looks]
    said = " and ".join(runner.side.name for runner in away)
    return "not_arrived", (
        f"{said}: {' and '.join(best) or 'no evaluation'} after "
        f"{max((r.looks[-1].step for r in away if r.looks), default=0)} steps; raise "
        "quality.budget (time) or quality.steps"
    )


def _result(
    goal: Quality,
    status: str,
    reason: str,
    runners: Sequence[Runner] = (),
    sessions: Sessions | None = None,
    seconds: float = 0.0,
) -> QualityResult:
    sides = [runner.record(goal, runners[0]) for runner in runners]
    ratio = next((side.time_ratio for side in sides if side.name == BEST), None)
    return QualityResult.model_validate(
        {
            "status": status,
            "reason": reason,
            "bleu": goal.bleu,
            "loss": goal.loss,
            "pairs": translated(goal),
            "sides": sides,
            "time_ratio": ratio,
            "seconds": seconds,
            "provenance": sessions.provenance if sessions else {},
        }
    )


class QualityJob(TrainingJob):
    """Trains the baseline and the recommendation until both reach the required quality."""

    kind = "quality"

    search: Path
    """search.json."""
    also: tuple[Path, ...] = ()
    """spec.json of each further variant."""
    goal: Quality
    """quality of the study."""

    def run(self, log_file: Path | None) -> None:
        end_on_request()
        splits = [self.data / f"shards/{split}/manifest.json" for split in ("train", "validation")]
        made_from = [self.spec, self.search, *self.also, self.data / "tokenizer.json", *splits]
        check_all(made_from)
        baseline = read_record(self.spec, RunSpec)
        found = read_record(self.search, SearchResult)
        also = [read_record(file, RunSpec) for file in self.also]
        folder, command = self.output.with_suffix(""), reproducing_command(self.output)
        with workplace(folder):
            result = time_to_quality(baseline, found, also, self.goal, self.data, folder, command)
            write_result(self.output, result.model_dump_json(indent=1) + "\n", made_from)
        log.info("quality: %s", result.reason)


def for_race(spec: RunSpec, goal: Quality) -> RunSpec:
    """``spec`` as a training for the race: with its number of steps, and uninterrupted."""
    # A whole number of turns.
    steps = goal.steps // goal.every * goal.every
    schedule = goal.schedule or spec.training.schedule
    return spec.with_training(steps=steps, schedule=schedule, validate_every=0, checkpoint_every=0)


def race(sessions: Sessions, runners: Sequence[Runner], goal: Quality) -> None:
    """Lets the sides train in turns until all have reached the goal, or time or steps run out.

    The outcome of a side that ends early says why; its earlier evaluations are kept.
    """
    end = time.monotonic() + goal.budget
    turn = 0
    try:
        with sessions.gathered() as (ask, _):
            sessions.provenance |= sessions.provenances(ask)
            while (left := [r for r in runners if r.on_the_way(goal)]) and time.monotonic() < end:
                for runner in left[::-1] if turn % 2 else left:
                    seen = runner.run(ask, goal)
                    sessions.progress(
                        f"{runner.side.name}, step {seen.step}: {_words(seen)} after "
                        f"{seen.seconds:.0f} s"
                    )
                turn += 1
    except SessionEndedError as error:
        if error.outcome.again:
            count_failure(sessions.folder.with_suffix(".json"))
        next(r for r in runners if r.side.name == error.side).outcome = error.outcome


@dataclass(frozen=True)
class Seen:
    """The report of a rank about its model; no BLEU if nothing was translated."""

    loss: float
    bleu: float | None
    samples: list[Translation]


@dataclass(frozen=True)
class Look(Task):
    """Task to report the validation loss, and how well the model translates the first ``pairs`` of
    the validation split, greedily, with some of them shown."""

    pairs: int
    answer: ClassVar[Any] = Seen


def work(order: RaceOrder, program: Program) -> None:
    """Trains in turns, and evaluates the model between them."""
    tokenizer_file = order.data / "tokenizer.json"

    def answer(setup: Setup, task: Any) -> Any:
        if not isinstance(task, Look):
            return refuse(setup, task)
        with averaged(setup):
            if not task.pairs:
                return Seen(validation_loss(setup), None, [])
            made_by = setup.validation_store.manifest.tokenizer_sha256
            return look(setup, load_tokenizer(tokenizer_file, made_by), task)

    take_turns(order, program, order.spec, answer)


def look(setup: Setup, tokenizer: Any, task: Look) -> Seen:
    """The current validation loss and BLEU. Every rank computes both, since a sharded model runs on
    all of them together."""
    store, model = setup.validation_store, setup.model
    loss = validation_loss(setup)
    greedily = Evaluation(beam_size=1, max_pairs=task.pairs)
    training = model.training
    model.eval()
    setup.strategy.rest()  # ranks decode as long as it takes, without a step
    found = translate_rows(model, setup.precision, setup.device, store, greedily)
    guesses = {row: detokenize(tokenizer, ids) for row, ids in found}
    model.train(training)
    rows = sorted(guesses)
    hypotheses = [guesses[row] for row in rows]
    references = [detokenize(tokenizer, ids) for ids in store.target_rows(rows)]
    shown = rows[:SAMPLES]
    sources = [detokenize(tokenizer, ids) for ids in store.source_rows(shown)]
    samples = [
        Translation(source=source, reference=reference, hypothesis=guess)
        for source, reference, guess in zip(sources, references, hypotheses, strict=False)
    ]
    bleu = bleu_in(setup.spec.corpus).corpus_score(hypotheses, [references])
    return Seen(loss, bleu.score, samples)
