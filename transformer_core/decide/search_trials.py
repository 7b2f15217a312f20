"""Combinations of techniques during a search, and the state shared by all its sessions."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from statistics import fmean

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Pair, Session
from schemas.results.answer import Contender
from schemas.results.common import BASELINE
from transformer_core.common.digests import write_result
from transformer_core.common.progress import SessionLines, log
from transformer_core.decide.search_effects import Parts
from transformer_core.decide.search_moves import NAME
from transformer_core.measure.comparison import Kept, kept_in
from transformer_core.measure.sessions import SessionEndedError, Sessions, Side, for_devices
from transformer_core.study.resolve import combine

FINAL_SHARE = 0.5  # fraction of the budget reserved for the final comparison


@dataclass
class Trial:
    """A combination that has been measured, or will be."""

    parts: Parts
    spec: RunSpec
    predicted: float
    """Ratio of its throughput to the baseline's if the effects of its parts multiplied."""
    bundle: bool = False
    """Whether its only part is a variant with everything it inherits, not just its own change."""
    rounds: list[float] = field(default_factory=list)  # the same ratio, measured in each session
    status: str = "ok"
    reason: str | None = None
    certificate: Certificate | None = None
    turns: list[tuple[Session, str]] = field(default_factory=list)
    """The sessions, with the name of its side in each."""

    @property
    def key(self) -> str:
        """Identity of its training, regardless of its name."""
        return self.spec.digest()

    @property
    def estimate(self) -> float:
        """The best estimate of the ratio: measured if possible, else predicted."""
        return fmean(self.rounds) if self.rounds else self.predicted

    @property
    def record(self) -> Contender:
        """The trial as recorded in the result of a search."""
        return Contender(
            parts=sorted(self.parts),
            predicted=self.predicted,
            rounds=self.rounds,
            bundle=self.bundle,
            status=self.status,
            reason=self.reason,
            certificate=self.certificate.status if self.certificate else None,
        )


@dataclass
class Bench:
    """State shared by all sessions of a search."""

    study: Study
    variants: Mapping[str, Variant]
    effects: Mapping[str, float]  # logarithms of the techniques' effects alone
    baseline: RunSpec
    data: Path
    folder: Path
    command: str
    deadline: float
    budget: float  # seconds of the whole search
    room: int  # combinations that may take turns at once, besides the baseline
    certificates: Mapping[str, Certificate]  # certificates of the study's variants
    reference: Path  # folder of the short run of the reference
    again: Callable[[], None]  # called when something failed for a reason that may be temporary
    key: str = ""  # identity of this search: kept sessions of another one do not count
    trials: dict[Parts, Trial] = field(default_factory=dict)  # trials measured so far
    spent: float = 0.0  # seconds of the longest session
    per_side: float = 0.0  # most seconds per side that a session has taken
    made: int = 0  # sessions so far: each has its own seed and order of turns

    def trial(self, parts: Parts) -> Trial:
        """The trial of a combination that is a valid run spec."""
        if parts not in self.trials:
            spec = combine(self.study, self.variants, sorted(parts), NAME)
            assert spec is not None, "only valid combinations are tried"
            predicted = exp(sum(self.effects.get(part, 0.0) for part in sorted(parts)))
            self.trials[parts] = Trial(parts, spec, predicted)
        return self.trials[parts]

    def measure(self, combinations: Sequence[Parts]) -> dict[Parts, float]:
        """Run one session of the baseline and of those combinations that can run.

        Returns the logarithms of their throughputs over that of the baseline.
        """
        trials = {f"trial_{n}": self.trial(parts) for n, parts in enumerate(combinations)}
        least, began = self.study.comparison.pairs, time.monotonic()
        name = f"session-{sum(len(trial.turns) for trial in self.trials.values())}"
        while trials:
            try:
                with self.sessions(trials, name) as sessions:
                    session = sessions.run(self.made + 1, lambda rounds, _: len(rounds) >= least)
            except SessionEndedError as error:
                self.leave_out(trials, error)
                continue
            parts = {side: sorted(trial.parts) for side, trial in trials.items()}
            kept = {"key": self.key, "parts": parts, "session": session.model_dump(mode="json")}
            write_result(self.folder / f"{name}.json", json.dumps(kept))
            return self._take_in(trials, session, time.monotonic() - began)
        return {}

    def resume(self) -> Iterator[dict[Parts, float]]:
        """Yields the results of each session of an interrupted search, like :meth:`measure`. Their
        time counts."""
        for file in sorted(self.folder.glob("session-*.json")):
            match kept_in(file, "key", "parts"):
                case [session, self.key, chosen]:
                    trials = {side: self.trial(frozenset(parts)) for side, parts in chosen.items()}
                    log.info("search: resuming with %s", file)
                    self.deadline -= session.seconds
                    yield self._take_in(trials, session, session.seconds)

    def _take_in(
        self, trials: Mapping[str, Trial], session: Session, seconds: float
    ) -> dict[Parts, float]:
        found = {}
        self.made += 1
        for side, trial in trials.items():
            found[trial.parts] = session.ratio(Pair(side, BASELINE)).estimate
            trial.rounds.append(exp(found[trial.parts]))
            trial.turns.append((session, side))
        self.spent = max(self.spent, seconds)
        self.per_side = max(self.per_side, seconds / (1 + len(trials)))
        return found

    def kept(self, trials: Mapping[str, Trial], name: str, first: int) -> Kept:
        """The complete sessions of these trials together with the baseline, from number ``first``."""
        return Kept(self.folder / name, *self._asked(trials), self.key, first)

    def leave_out(self, trials: dict[str, Trial], error: SessionEndedError) -> None:
        """Removes the side that ended from ``trials``, which then has its status; if it is the
        baseline, raises the error again."""
        if error.outcome.again:
            self.again()
        if error.side == BASELINE:
            raise error
        trial = trials.pop(error.side)
        trial.status, trial.reason = error.outcome.status, error.outcome.reason

    def sessions(self, trials: Mapping[str, Trial], name: str) -> AbstractContextManager[Sessions]:
        """Sessions of these trials together with the baseline."""
        return Sessions.opened(
            *self._asked(trials),
            self.data,
            self.folder / name,
            self.command,
            SessionLines(f"search, {name}"),
        )

    def _asked(self, trials: Mapping[str, Trial]) -> tuple[list[Side], Comparing]:
        others = [Side(side, trial.spec) for side, trial in trials.items()]
        sides = [Side(BASELINE, self.baseline), *others]
        return sides, for_devices(self.study.comparison, [side.spec for side in sides])

    def affordable(self) -> int:
        """Combinations for which there is time in the final comparison."""
        session = self.left() / self.study.comparison.sessions_least
        sides = int(session / self.per_side) if self.per_side else 1 + self.room
        return min(self.room, sides - 1)

    def left(self) -> float:
        """Remaining seconds of the budget."""
        return self.deadline - time.monotonic()

    def more(self) -> bool:
        """Whether another session leaves the final comparison its share of the budget."""
        return self.left() - FINAL_SHARE * self.budget >= 1.2 * self.spent
