"""One line that says how far the whole study is, beneath what Snakemake says of its jobs.

On a terminal it stays in its place; elsewhere it is a line of the log now and then. It listens to
Snakemake's own log, so that it needs no option and no other program.
"""

import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

from transformer_core.common.study_clock import JobTimes, RunningClock
from transformer_core.study.timekeeping.expectations import Range, expected, in_words, total

LINE_SECONDS = 30.0
"""Lines of the log are this far apart at least."""
CLEAR = "\r\x1b[2K"


@dataclass
class Work:
    """The jobs of a command: what is done, what runs, what is still to do."""

    counts: dict[str, int]
    """Jobs of each rule that are not done."""
    shares: Mapping[str, float]
    """Share of the cores that a job of each rule reserves."""
    known: Mapping[str, JobTimes]
    """How long jobs took before."""
    guessed: Mapping[str, Range]
    start: float
    """Seconds that this program took to start."""
    done: int = 0
    running: dict[int, tuple[str, float, str]] = field(default_factory=dict)
    """By number of the job: rule, start, and what it does."""

    def __post_init__(self) -> None:
        self.all = sum(self.counts.values())

    def left(self, now: float) -> Range:
        """Seconds that are left, if jobs take as long as they did."""
        found = total(self.counts, self.shares, self.known, self.guessed, self.start)
        spent = sum(
            min(now - began, _mean(self.known, rule)) * self.shares.get(rule, 1.0)
            for rule, began, _ in self.running.values()
        )
        return Range(max(0.0, found.low - spent), max(0.0, found.high - spent))

    def overdue(self, now: float) -> bool:
        """Whether a job that runs takes longer than expected: then nobody knows what is left."""
        return any(
            now - began > expected(rule, self.known, self.guessed, self.start).high
            for rule, began, _ in self.running.values()
        )


def _mean(known: Mapping[str, JobTimes], rule: str) -> float:
    return known[rule].mean if rule in known else 0.0


class Timekeeper(logging.Handler):
    """Keeps the clock of a study by what Snakemake says of its jobs, and shows the line."""

    def __init__(
        self,
        clock: RunningClock,
        work: Work,
        asked: float | None = None,
        show: bool = True,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.clock, self.work, self.asked = clock, work, asked
        self.show, self.stream, self.now = show, stream or sys.stderr, now
        self.terminal = show and self.stream.isatty()
        self.said = now()

    def emit(self, record: logging.LogRecord) -> None:
        """Take in what a record says of a job; what goes wrong here must not stop Snakemake."""
        try:
            self._take_in(record)
            self.tell()
        except Exception:  # as handlers of the standard library do
            self.handleError(record)

    def _take_in(self, record: logging.LogRecord) -> None:
        event = getattr(getattr(record, "event", None), "value", None)
        if event == "job_info":
            number, rule = int(vars(record)["jobid"]), str(vars(record)["rule_name"])
            what = str(vars(record)["rule_msg"] or rule)
            self.work.running[number] = rule, self.now(), what
        elif event == "job_finished":
            self._finished(int(vars(record)["job_id"]))
        elif event == "job_error":
            self.work.running.pop(int(vars(record)["jobid"]), None)

    def _finished(self, number: int) -> None:
        rule, began, _ = self.work.running.pop(number, ("", 0.0, ""))
        if rule:
            share = self.work.shares.get(rule, 1.0)
            self.clock.job_done(rule, self.now() - began, share)
            self.work.known = self.clock.clock.jobs
            self.work.counts[rule] = max(0, self.work.counts.get(rule, 0) - 1)
            self.work.done += 1

    def tell(self) -> None:
        """Show the line, if it is due."""
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"{CLEAR}{self.line()[:width]}")
            self.stream.flush()
        elif self.show and self.now() - self.said >= LINE_SECONDS:
            self.said = self.now()
            print(self.line(), file=self.stream, flush=True)

    def line(self) -> str:
        """How far the study is, how long still, and what it does."""
        spent = clock_text(self.clock.spent())
        of = f" of {clock_text(self.asked)}" if self.asked else ""
        left = self.work.left(self.now())
        if self.asked and "refine" in self.work.counts and self.work.counts["refine"]:
            # Comparisons go on until the time is spent.
            rest = self.asked - self.clock.spent()
            left = Range(max(left.low, rest), max(left.high, rest))
        doing = next((what for _, _, what in reversed(self.work.running.values())), "")
        said = in_words(left)
        if self.work.overdue(self.now()):
            said = f"over {in_words(Range(left.high, left.high)).removeprefix('about ')}"
        text = f"{self.work.done} of {self.work.all} jobs, {spent}{of}, {said} left"
        return f"{text} | {doing.splitlines()[0]}" if doing else text

    def clear(self) -> logging.Handler:
        """What takes the line away before anything else is written."""
        return _Clearing(self.stream if self.terminal else None)


class _Clearing(logging.Handler):
    """Takes the line away from a terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None:
            with suppress(OSError, ValueError):  # it is closed
                self.stream.write(CLEAR)
                self.stream.flush()


def clock_text(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes, as on a clock."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
