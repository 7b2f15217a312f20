"""Progress of long work: a bar on a terminal, occasional log lines elsewhere."""

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tqdm import tqdm

CHANGES_NO_RESULT = True  # it shows progress

log = logging.getLogger("transformer_core")

LINE_SECONDS = 10.0  # least seconds between log lines


def log_to(path: Path | None) -> None:
    """Sends log lines to ``path`` and to standard error; if it is a terminal, which has bars, only
    warnings."""
    logging.raiseExceptions = False  # a full disk would print a traceback for each line
    log.setLevel(logging.INFO)
    log.propagate = False
    handlers: list[logging.Handler] = []
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    handlers.append(logging.StreamHandler())
    if sys.stderr.isatty():
        handlers[-1].setLevel(logging.WARNING)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)


class Progress:
    """Counts ``unit``s of ``what``; use it as a context manager and call :meth:`update`."""

    def __init__(
        self, what: str, unit: str, total: int | None = None, *, show: bool = True
    ) -> None:
        self.what, self.unit, self.total, self.show = what, unit, total, show
        self.note = ""  # the text shown behind the count
        self.bar: tqdm | None = None
        self.done = self.first = 0
        self.began = self.lined = time.monotonic()

    def start(self, done: int = 0) -> None:
        """Starts counting, with ``done`` units already done."""
        self.done = self.first = done
        self.began = self.lined = time.monotonic()
        if self.show and sys.stderr.isatty():
            from tqdm import tqdm  # slow to import, and most jobs have no terminal

            self.bar = tqdm(
                total=self.total,
                initial=done,
                desc=self.what,
                unit=f" {self.unit}",
                unit_scale=True,
            )

    def update(self, count: int) -> None:
        self.count(count)
        self.line()

    def count(self, count: int) -> None:
        """Adds ``count`` units to the bar, without a line."""
        self.done += count
        if self.bar is not None:
            self.bar.update(count)

    def line(self, due: bool = False) -> None:
        """Logs the progress if it is ``due`` or none was logged for a while."""
        now = time.monotonic()
        beside_bar = self.bar is not None and log.propagate  # not to a file, but to its terminal
        if not self.show or beside_bar or not (due or now >= self.lined + LINE_SECONDS):
            return
        self.lined = now
        of = left = ""
        if self.total:
            of = f" of {self.total:,}"
            speed = (self.done - self.first) / max(now - self.began, 1e-9)
            left = f", {_clock((self.total - self.done) / speed)} left" if speed else ""
        log.info("%s: %s%s %s%s%s", self.what, f"{self.done:,}", of, self.unit, self.note, left)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunProgress(Progress):
    """Steps, loss and tokens per second of one training; shown by the main rank only."""

    def __init__(self, name: str, steps: int, show: bool) -> None:
        super().__init__(name, "steps", steps, show=show)
        self.tokens = 0

    def start(self, done: int = 0) -> None:
        super().start(done)
        if self.show:
            how = "resumes after step" if done else "starts, step"
            log.info("%s: %s %d of %d", self.what, how, done, self.total)

    def step_done(self, tokens: int) -> None:
        self.tokens += tokens
        self.count(1)

    def logged(self, step: int, loss: float) -> None:
        rate = self.tokens / max(time.monotonic() - self.began, 1e-9)
        self.note = f", loss {loss:.3f}, {rate:,.0f} tokens/s"
        if self.bar is not None:
            self.bar.set_postfix_str(self.note.removeprefix(", "))
        self.line(due=step == self.total)

    def validated(self, step: int, loss: float) -> None:
        if self.show:
            log.info("%s: step %d, validation loss %.3f", self.what, step, loss)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class SessionLines:
    """Progress of sessions as a limited number of log lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session = 1
        self.said = -LINE_SECONDS

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self.said >= LINE_SECONDS:
            self.said = now
            log.info("%s, session %d: %s", self.name, self.session, text)
