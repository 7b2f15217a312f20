"""A combination on its way through a search, and what all sessions of a search share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results import Certificate, Session
from schemas.results.search import BASELINE
from transformer_core.common.progress import SessionLines
from transformer_core.measure.turns.session import Sessions
from transformer_core.measure.turns.sides import Side
from transformer_core.run.coordinator import Coordinator

NAME = "recommended"
FINAL_SHARE = 0.5
"""Share of the budget that is kept for the final comparison."""

Parts = tuple[str, ...]


@dataclass
class Trial:
    """A combination on its way through the rounds."""

    parts: Parts
    spec: RunSpec
    predicted: float
    rounds: list[float] = field(default_factory=list)
    status: str = "ok"
    reason: str | None = None
    certificate: Certificate | None = None
    turns: list[tuple[Session, str]] = field(default_factory=list)
    """The session of each round, and the name of its side there."""
    reached: int = 0
    """The last round that it took part in."""

    @property
    def rank(self) -> tuple[int, float]:
        """The larger, the better: the last round, then what that measured."""
        return self.reached, self.rounds[-1] if self.rounds else self.predicted


@dataclass
class Bench:
    """What all sessions of a search share."""

    study: Study
    baseline: RunSpec
    data: Path
    folder: Path
    command: str
    started: datetime
    deadline: float
    certificates: Mapping[str, Certificate]
    """Those of the study's variants."""

    def sessions(
        self,
        specs: Mapping[str, RunSpec],
        comparing: Comparing,
        coordinator: Coordinator,
        name: str,
    ) -> Sessions:
        """Sessions of these run specs beside the baseline."""
        sides = [Side(side, spec) for side, spec in {BASELINE: self.baseline, **specs}.items()]
        lines = SessionLines(f"search, {name}")
        return Sessions(
            sides,
            comparing,
            self.data,
            self.folder / name,
            coordinator,
            self.command,
            self.started,
            lines,
        )

    def coordinator(self) -> Coordinator:
        """A coordinator for one group of sessions."""
        return Coordinator(self.folder / "coordinator.json", self.baseline.machine.nodes > 1)

    @property
    def together(self) -> int:
        """Trainings that may be alive at the same time, the baseline's among them."""
        assert self.study.search is not None, "somebody asked for a search"
        return self.study.search.together

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.deadline - time.monotonic()

    def left_for_rounds(self) -> float:
        """Seconds of the budget that are left without what the final comparison is to have."""
        assert self.study.search is not None, "somebody asked for a search"
        return self.left() - FINAL_SHARE * self.study.search.budget
