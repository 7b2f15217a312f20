"""The expected duration of a study, and its progress.

A job is expected to take as long as others of its rule took on this host, else a guess is made: from
how fast this host multiplies matrices, and how long this very program took to start. Jobs that
train and have ended correct the guesses for other rules that train.

While jobs run, a line of Snakemake's log says now and then how far the study is. Which jobs run
and which have ended is taken from the events of that log.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from pydantic import ValidationError

from schemas.base import seconds_of
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results.comparisons import Refinement
from transformer_core.common.study_clock import JobTimes, RunningClock
from transformer_core.study.reservations import step_flops

TRAINS = ("train", "train_again", "short_run", "evaluate", "profile", "memory")
"""Rules whose jobs are about as long as a training."""
KNOWN, ALIKE, GUESSED = (0.8, 1.3), (0.6, 1.7), (0.3, 2.0)
"""Ranges around an expectation: where jobs of the rule have ended, where others that train have, and
where none has."""
LARGE = 512
"""Width of the matrices that are multiplied."""
TRIES = 20
"""Products of which the fastest counts: on a busy host most are interrupted."""
LINE_SECONDS = 30.0
"""Seconds between two lines of the log, at least."""
REFINEMENT = Path("results/refinement.json")
NAMED = 5
"""Undecided comparisons that are named at the end."""


class Range(NamedTuple):
    """Seconds, from and to."""

    low: float
    high: float

    def times(self, factor: float) -> "Range":
        """Of so many, or of a share."""
        return Range(self.low * factor, self.high * factor)

    def __str__(self) -> str:
        """In words: about 3 min, 40 to 90 s."""
        low, high = (max(1, round(value)) for value in self)
        unit, size = ("s", 1) if high < 120 else ("min", 60) if high < 7_200 else ("h", 3_600)
        first, last = (f"{n / size:.0f}" if n >= size else f"{n / size:.1f}" for n in (low, high))
        return f"about {first} {unit}" if first == last else f"{first} to {last} {unit}"


def matrix_rate() -> float:
    """Floating-point operations per second of a product of two 32-bit matrices here."""
    import numpy as np  # planning alone needs no numpy

    matrix = np.ones((LARGE, LARGE), np.float32)
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2.0 * LARGE**3 / best


def guesses(
    study: Study, specs: Mapping[str, RunSpec], groups: Sequence[int], start: float, rate: float
) -> dict[str, float]:
    """Seconds that a job of each rule that trains or is budgeted may take.

    ``groups`` are the sides of each comparison job, ``start`` the seconds that a job takes to
    start, ``rate`` what :func:`matrix_rate` says.
    """
    flops = fmean(step_flops(spec, study.tokenizer.vocabulary) for spec in specs.values())
    training = start + study.training.steps * flops / rate
    found = dict.fromkeys(TRAINS, training)
    if groups:
        asked, sides, step = study.comparison, fmean(groups), flops / rate
        turn = asked.lead_steps + max(asked.window_steps, asked.window_seconds / step)
        steps = max(2, asked.warmup_steps) + asked.pairs * turn
        # The sessions that every comparison has, whatever its budget.
        least = asked.sessions_least * (start + sides * steps * step)
        found["turns"] = max(least, start + asked.budget * sides / 2)
    if study.search is not None:
        found["search"] = training + study.search.budget
    if study.quality is not None:
        found["quality"] = start + study.quality.budget / 2
    return found


@dataclass
class Forecast:
    """How long the jobs of a study take."""

    known: Mapping[str, JobTimes]
    """How long jobs of each rule took before."""
    guessed: Mapping[str, float]
    """Seconds by rule, from :func:`guesses`."""
    start: float
    """Seconds that a job takes to start."""
    shares: Mapping[str, float]
    """Share of the cores that a job of each rule reserves."""

    def job(self, rule: str) -> Range:
        """Seconds of a job of a rule."""
        known, guessed = self.known, self.guessed
        if rule in known and known[rule].count:
            return Range(*KNOWN).times(known[rule].mean)
        both = [name for name in TRAINS if name in known and name in guessed]
        others = [known[name].mean / guessed[name] for name in both]
        if rule in TRAINS and others and min(others) > 0:
            return Range(*ALIKE).times(guessed[rule] * geometric_mean(others))
        return Range(*GUESSED).times(guessed.get(rule, self.start))

    def jobs(self, counts: Mapping[str, int]) -> Range:
        """Seconds of so many jobs of each rule, each of which takes its share of the machine."""
        ranges = [
            self.job(rule).times(n * self.shares.get(rule, 1.0)) for rule, n in counts.items()
        ]
        return Range(sum(one.low for one in ranges), sum(one.high for one in ranges))


class Timekeeper(logging.Handler):
    """Keeps the clock of a study by the events of Snakemake's log, and says how far the study is."""

    def __init__(
        self,
        clock: RunningClock,
        counts: Mapping[str, int],
        forecast: Forecast,
        asked: float | None,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``counts`` are the jobs of each rule, ``asked`` the seconds that the study has."""
        super().__init__()
        self.clock, self.forecast, self.asked, self.say, self.now = clock, forecast, asked, say, now
        self.todo = Counter(counts)
        self.all = self.todo.total()
        self.running: dict[int, tuple[str, float, str]] = {}
        """By number of the job: rule, start, and what it does."""
        self.said = now()

    def emit(self, record: logging.LogRecord) -> None:
        """Take in what a record says of a job; an error here must not stop Snakemake."""
        try:
            self._take_in(vars(record))
        except Exception:  # as handlers of the standard library do
            self.handleError(record)

    def _take_in(self, said: Mapping[str, Any]) -> None:
        event = getattr(said.get("event"), "value", None)
        if event == "job_info":
            rule = str(said["rule_name"])
            self.running[int(said["jobid"])] = rule, self.now(), str(said["rule_msg"] or rule)
        elif event == "job_error":
            self.running.pop(int(said["jobid"]), None)
        elif event == "job_finished" and (job := self.running.pop(int(said["job_id"]), None)):
            rule, began, _ = job
            self.clock.job_done(rule, self.now() - began, self.forecast.shares.get(rule, 1.0))
            self.forecast.known = self.clock.clock.jobs
            self.todo[rule] -= 1

    def tell(self) -> None:
        """Reports the progress of the study, if that is due."""
        if self.now() - self.said >= LINE_SECONDS:
            self.said = self.now()
            self.say(self.line())

    def left(self) -> Range:
        """Seconds that are left, if jobs take as long as they did."""
        found, spent = self.forecast.jobs(self.todo), 0.0
        for rule, began, _ in self.running.values():
            if rule in self.forecast.known:
                done = min(self.now() - began, self.forecast.known[rule].mean)
                spent += done * self.forecast.shares.get(rule, 1.0)
        left = Range(max(0.0, found.low - spent), max(0.0, found.high - spent))
        if self.asked and self.todo["refine"] > 0:
            # Comparisons continue until the time is spent.
            rest = self.asked - self.clock.spent()
            left = Range(max(left.low, rest), max(left.high, rest))
        return left

    def line(self) -> str:
        """The progress of the study, the time left, and the running job."""
        of = f" of {clock_text(self.asked)}" if self.asked else ""
        left = self.left()
        said = str(left)
        # Where a job takes longer than expected, the time left is unknown.
        if any(
            self.now() - t > self.forecast.job(rule).high for rule, t, _ in self.running.values()
        ):
            said = f"over {Range(left.high, left.high)}".replace("about ", "")
        done = self.all - self.todo.total()
        text = f"{done} of {self.all} jobs, {clock_text(self.clock.spent())}{of}, {said} left"
        doing = next((what for _, _, what in reversed(self.running.values())), "")
        return f"{text} | {doing.splitlines()[0]}" if doing else text


def clock_text(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes, as on a clock."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def begin(
    jobs: Sequence[Any],
    cores: int,
    study: Study,
    specs: Mapping[str, RunSpec],
    groups: Sequence[int],
    say: Callable[[str], None],
) -> Timekeeper:
    """Start the clock for Snakemake's ``jobs`` and ``say`` how long they are going to take.

    ``groups`` are the sides of each comparison job. The timekeeper is to be added to Snakemake's
    log as a handler, and ends with :func:`end`.
    """
    counts = Counter(job.rule.name for job in jobs)
    shares = {job.rule.name: min(1.0, int(job.threads) / max(1, cores)) for job in jobs}
    asked = seconds_of(study.time) if study.time else None
    start = time.process_time()
    guessed = guesses(study, specs, groups, start, matrix_rate())
    clock = RunningClock()
    forecast = Forecast(clock.clock.jobs, guessed, start, shares)
    say(at_the_start(len(specs), counts, forecast, asked, clock.spent()))
    keeper = Timekeeper(clock, counts, forecast, asked, say)
    clock.go(keeper.tell)
    return keeper


def end(keeper: Timekeeper) -> None:
    """Stop the clock, and say how much of the study's time is spent."""
    keeper.clock.stop()
    if said := at_the_end(keeper.asked, keeper.clock.spent()):
        keeper.say(said)


def at_the_start(
    variants: int, counts: Mapping[str, int], forecast: Forecast, asked: float | None, spent: float
) -> str:
    """The number of variants and jobs, their expected time on this machine, and its uncertainty."""
    # Continued comparisons take the remaining time, so they are not part of the required work.
    must = {rule: count for rule, count in counts.items() if rule != "refine"}
    needed, unknown = forecast.jobs(must), len(must.keys() - forecast.known.keys())
    basis = "as such jobs took before"
    if unknown == len(must):
        basis = "a first guess: no such job has ended here yet"
    elif unknown:
        basis = f"in part a guess: no job of {unknown} of {len(must)} kinds has ended here yet"
    jobs = sum(counts.values())
    text = f"{variants} variants, {jobs} jobs: {needed} on this machine ({basis})."
    if asked is None:
        return text
    text += f" The study has {clock_text(asked)}"
    text += f", of which {clock_text(spent)} are spent. " if spent >= 1 else ". "
    if asked - spent < needed.low:
        return text + "What must run takes longer: comparisons have their first round only."
    return text + "What is left goes to comparisons that are undecided."


def at_the_end(asked: float | None, spent: float, record: Path = REFINEMENT) -> str:
    """The time it took, and what more time would decide; nothing if the study has no time."""
    if asked is None:
        return ""
    text = f"{clock_text(spent)} of {clock_text(asked)} are spent."
    try:
        found = Refinement.model_validate_json(record.read_bytes())
    except (OSError, ValidationError):
        return text
    if not found.unsettled:
        return f"{text} Every comparison has a verdict."
    named = []
    for one in found.unsettled[:NAMED]:
        more = "time does not help"
        if one.seconds is not None:
            more = f"about {clock_text(one.seconds)} more"
        named.append(f"{one.variant} against {one.reference} ({more})")
    if others := len(found.unsettled) - len(named):
        named.append(f"{others} more")
    return (
        f"{text} Undecided: {', '.join(named)}. With --config "
        f"time={found.next_seconds(spent) / 60:.0f}min the same command goes on with them."
    )
