"""The race for quality: two trainings take turns until both translate as well as asked.

Each goes on until it has arrived, so that what a side needs is measured to its end; while both
train, a drift of the machine meets both.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.config.quality import Quality
from schemas.config.run_spec import RunSpec
from schemas.results import Translation
from schemas.results.quality import QualityLook, QualitySide
from transformer_core.measure.quality.looks import Look, Seen
from transformer_core.measure.turns.session import Ask, SessionEndedError, Sessions
from transformer_core.measure.turns.sides import Side
from transformer_core.run.coordinator import Turn
from transformer_core.run.statuses import Outcome

SAMPLES = 3


@dataclass
class Runner:
    """A side on its way."""

    side: Side
    parts: Sequence[str]
    looks: list[QualityLook] = field(default_factory=list)
    samples: list[Translation] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome(status="ok", reason=None))

    def arrived(self, goal: Quality) -> QualityLook | None:
        """The first look with the BLEU that is asked for."""
        return next((look for look in self.looks if look.bleu >= goal.bleu), None)

    def on_the_way(self, goal: Quality) -> bool:
        """Whether it has steps left, and a reason to take them."""
        done = self.looks[-1].step if self.looks else 0
        return self.arrived(goal) is None and done + goal.every <= self.side.spec.training.steps

    def run(self, ask: Ask, goal: Quality) -> QualityLook:
        """A turn, and a look at what it has come to."""
        reports = ask(self.side, Turn(0, goal.every))
        seen: Seen = ask(self.side, Look(goal.max_pairs, SAMPLES))[0]
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

    def record(self, goal: Quality) -> QualitySide:
        """What is said of it."""
        return QualitySide(
            name=self.side.name,
            parts=list(self.parts),
            status=self.outcome.status,
            reason=self.outcome.reason,
            looks=self.looks,
            arrived=self.arrived(goal),
            samples=self.samples,
        )


def for_race(spec: RunSpec, goal: Quality) -> RunSpec:
    """``spec`` as a training of the race: its length, and nothing that interrupts it."""
    # A whole number of turns.
    steps = max(1, goal.steps // goal.every) * goal.every
    training = spec.training.model_dump()
    training |= {"steps": steps, "validate_every": 0, "checkpoint_every": 0}
    if goal.schedule is not None:
        training["schedule"] = goal.schedule.model_dump()
    return RunSpec.model_validate(spec.model_dump() | {"training": training})


def race(sessions: Sessions, runners: Sequence[Runner], goal: Quality) -> None:
    """Let the runners train in turns until all have arrived, or the time or the steps are spent.

    Of a side that ends before, the outcome says why; what was seen until then stays.
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
                        f"{runner.side.name}, step {seen.step}: {seen.bleu:.1f} BLEU after "
                        f"{seen.seconds:.0f} s"
                    )
                turn += 1
    except SessionEndedError as error:
        next(r for r in runners if r.side.name == error.side).outcome = error.outcome
