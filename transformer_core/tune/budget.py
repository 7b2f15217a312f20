"""Estimates the time of a session from earlier sessions, to keep a whole command within its time."""

import os
import time
from dataclasses import dataclass, field

REPORT_SECONDS = 10.0
"""Time reserved for writing the report."""
BEGAN = "TUNE_TRAINING_BEGAN"
"""Environment variable that holds the start time of the user's command."""


@dataclass
class Budget:
    """The seconds to spend, and the cost of sessions."""

    seconds: float
    began: float = field(default_factory=time.monotonic)
    start: float = 5.0
    """Seconds until two copies of the script have reached their first step."""
    record: float = 1.0
    """Seconds that a copy takes for the steps that certificates compare."""
    step: float = 1.0
    """Seconds of a step."""
    _estimated: float = 0.0
    _took: float = 0.0

    def __post_init__(self) -> None:
        if BEGAN in os.environ:
            self.began -= max(0.0, time.time() - float(os.environ[BEGAN]))

    @property
    def gone(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds that sessions may still take."""
        return self.seconds - REPORT_SECONDS - self.gone

    def cost(self, sides: int, steps: int) -> float:
        """Seconds of a session of ``sides`` copies that take ``steps`` steps each, corrected by how far
        earlier sessions exceeded their estimates."""
        pace = self._took / self._estimated if self._took else 1.0
        return pace * self._expected(sides, steps)

    def learn(self, sides: int, steps: int, took: float) -> None:
        """Remember that a session took ``took`` seconds."""
        self._estimated += self._expected(sides, steps)
        self._took += took

    def _expected(self, sides: int, steps: int) -> float:
        cores = max(2, len(os.sched_getaffinity(0)))
        start = self.start * max(1.0, sides / cores)
        return start + sides * (self.record + steps * self.step)
