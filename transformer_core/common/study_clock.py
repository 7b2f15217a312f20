"""The clock of a study: its working time over all commands, even after kills.

Snakemake saves it with the results while jobs run, every few seconds. A killed Snakemake loses the
time since the last save, and the same command continues from there. The clock also keeps how long
jobs took, for the host they ran on.
"""

import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from schemas.base import Schema
from transformer_core.common.files import write_text

CHANGES_NO_RESULT = True  # it records how long the work has taken
CLOCK = Path("results/.clock.json")
BEAT = 5.0  # seconds between two updates of the clock


class JobTimes(Schema):
    count: int = 0  # jobs that ended well
    seconds: float = 0.0  # all of them together
    share: float = 1.0  # share of the host's cores that a job reserves, 0 to 1

    @property
    def mean(self) -> float:
        return self.seconds / max(1, self.count)


class Clock(Schema):
    worked: float = 0.0  # seconds of all commands
    seen: float = 0.0  # when the last one was last seen at work, in seconds since 1970
    running: bool = False  # whether it was still running then
    host: str = ""  # the host it ran on
    jobs: dict[str, JobTimes] = Field(default_factory=dict)  # by rule, of that host

    def spent(self, now: float | None = None) -> float:
        """Working seconds of the study so far; ``now`` is for a running command."""
        since = now - self.seen if now is not None and self.running else 0.0
        return self.worked + (since if 0.0 < since < 10 * BEAT else 0.0)


def read_clock(path: Path = CLOCK) -> Clock:
    """Reads the clock; returns a new one if the file is missing or damaged."""
    try:
        return Clock.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Clock()


class RunningClock:
    """The clock of a running command. ``now`` must neither jump nor go on while the host sleeps, as the
    host's clock does."""

    def __init__(self, path: Path = CLOCK, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = path, now
        self._lock = threading.Lock()
        self._over = threading.Event()
        before, host = read_clock(path), platform.node()
        self._start = before.worked - now()
        jobs = before.jobs if before.host == host else {}
        self.clock = Clock(worked=before.worked, running=True, host=host, jobs=jobs)
        self.beat()

    def spent(self) -> float:
        return self._start + self._now() if self.clock.running else self.clock.worked

    def go(self, also: Callable[[], None] = lambda: None) -> None:
        """Saves the time every few seconds until this process ends, and calls ``also``."""
        threading.Thread(target=self._live, args=(also,), daemon=True).start()

    def job_done(self, rule: str, seconds: float, share: float = 1.0) -> None:
        """Counts a job that ended well and had a ``share`` of the cores."""
        with self._lock:
            old = self.clock.jobs.get(rule, JobTimes())
            times = JobTimes(count=old.count + 1, seconds=old.seconds + seconds, share=share)
            jobs = self.clock.jobs | {rule: times}
            self.clock = self.clock.model_copy(update={"jobs": jobs})

    def beat(self) -> None:
        with self._lock:
            changes = {"worked": self.spent(), "seen": time.time()}
            changes["running"] = not self._over.is_set()
            self.clock = self.clock.model_copy(update=changes)
            with suppress(OSError):  # for example a full disk: the next attempt may succeed
                write_text(self._path, self.clock.model_dump_json() + "\n")

    def stop(self) -> None:
        self._over.set()
        self.beat()

    def _live(self, also: Callable[[], None]) -> None:
        while not self._over.wait(BEAT):
            also()
            self.beat()
