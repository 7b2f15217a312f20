"""The expected duration of a study, and its progress.

A job is expected to take as long as others of its rule took on this host, else a guess is made: from
how fast this host multiplies matrices, and how long this very program took to start. Jobs that
train and have ended correct the guesses for other rules that train.

While jobs run, a line of Snakemake's log says now and then how far the study is. Which jobs run
and which have ended is taken from the events of that log.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from pydantic import ValidationError

from schemas.base import seconds_of
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results.refinement import Refinement
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


class Range(NamedTuple):
    """Seconds, from and to."""

    low: float
    high: float

    def times(self, factor: float) -> "Range":
        """Of so many, or of a share."""
        return Range(self.low * factor, self.high * factor)


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
        found["turns"] = start + study.comparison.budget * fmean(groups) / 2
    if study.search is not None:
        found["search"] = training + study.search.budget
    if study.quality is not None:
        found["quality"] = start + study.quality.budget / 2
    return found


def expected(
    rule: str, known: Mapping[str, JobTimes], guessed: Mapping[str, float], start: float
) -> Range:
    """Seconds of a job of a rule: as others of it took, or a guess, which those of other rules
    that train correct."""
    if rule in known and known[rule].count:
        return Range(*KNOWN).times(known[rule].mean)
    others = [known[name].mean / guessed[name] for name in TRAINS if name in {*known} & {*guessed}]
    if rule in TRAINS and others and min(others) > 0:
        return Range(*ALIKE).times(guessed[rule] * geometric_mean(others))
    return Range(*GUESSED).times(guessed.get(rule, start))


def total(
    counts: Mapping[str, int],
    shares: Mapping[str, float],
    known: Mapping[str, JobTimes],
    guessed: Mapping[str, float],
    start: float,
) -> Range:
    """Seconds of so many jobs of each rule, each of which takes a share of the machine."""
    ranges = [
        expected(rule, known, guessed, start).times(count * shares.get(rule, 1.0))
        for rule, count in counts.items()
    ]
    return Range(sum(one.low for one in ranges), sum(one.high for one in ranges))


def in_words(seconds: Range) -> str:
    """Text of a range: about 3 min, 40 to 90 s."""
    low, high = (max(1, round(value)) for value in (seconds.low, seconds.high))
    unit, size = ("s", 1) if high < 120 else ("min", 60) if high < 7_200 else ("h", 3_600)
    ends = [
        f"{value / size:.0f}" if value >= size else f"{value / size:.1f}" for value in (low, high)
    ]
    return f"about {ends[0]} {unit}" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} {unit}"


LINE_SECONDS = 30.0
"""Seconds between two lines of the log, at least."""


@dataclass
class Work:
    """The jobs of a command: what is done, what runs, what is still to do."""

    counts: dict[str, int]
    """Jobs of each rule that are not done."""
    shares: Mapping[str, float]
    """Share of the cores that a job of each rule reserves."""
    known: Mapping[str, JobTimes]
    """How long jobs took before."""
    guessed: Mapping[str, float]
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
        """Whether a running job takes longer than expected: the time left is then unknown."""
        return any(
            now - began > expected(rule, self.known, self.guessed, self.start).high
            for rule, began, _ in self.running.values()
        )


def _mean(known: Mapping[str, JobTimes], rule: str) -> float:
    return known[rule].mean if rule in known else 0.0


class Timekeeper(logging.Handler):
    """Keeps the clock of a study by the events of Snakemake's log, and says how far the study is."""

    def __init__(
        self,
        clock: RunningClock,
        work: Work,
        asked: float | None,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.clock, self.work, self.asked, self.say, self.now = clock, work, asked, say, now
        self.said = now()

    def emit(self, record: logging.LogRecord) -> None:
        """Take in what a record says of a job; an error here must not stop Snakemake."""
        try:
            self._take_in(record)
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
        """Reports the progress of the study, if that is due."""
        if self.now() - self.said >= LINE_SECONDS:
            self.said = self.now()
            self.say(self.line())

    def line(self) -> str:
        """The progress of the study, the time left, and the running job."""
        spent = clock_text(self.clock.spent())
        of = f" of {clock_text(self.asked)}" if self.asked else ""
        left = self.work.left(self.now())
        if self.asked and "refine" in self.work.counts and self.work.counts["refine"]:
            # Comparisons continue until the time is spent.
            rest = self.asked - self.clock.spent()
            left = Range(max(left.low, rest), max(left.high, rest))
        doing = next((what for _, _, what in reversed(self.work.running.values())), "")
        said = in_words(left)
        if self.work.overdue(self.now()):
            said = f"over {in_words(Range(left.high, left.high)).removeprefix('about ')}"
        text = f"{self.work.done} of {self.work.all} jobs, {spent}{of}, {said} left"
        return f"{text} | {doing.splitlines()[0]}" if doing else text


def clock_text(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes, as on a clock."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


REFINEMENT = Path("results/refinement.json")
NAMED = 5
"""Undecided comparisons that are named at the end."""


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
    counts: dict[str, int] = {}
    shares: dict[str, float] = {}
    for job in jobs:
        counts[job.rule.name] = counts.get(job.rule.name, 0) + 1
        shares[job.rule.name] = min(1.0, int(job.threads) / max(1, cores))
    asked = seconds_of(study.time) if study.time else None
    start = time.process_time()
    guessed = guesses(study, specs, groups, start, matrix_rate())
    clock = RunningClock()
    known = clock.clock.jobs
    work = Work(counts, shares, known, guessed, start)
    # Continued comparisons take the remaining time, so they are not part of the required work.
    must = {rule: count for rule, count in counts.items() if rule != "refine"}
    needed = total(must, shares, known, guessed, start)
    unknown = sorted(rule for rule in must if rule not in known)
    say(at_the_start(len(specs), work.all, needed, unknown, len(must), asked, clock.spent()))
    keeper = Timekeeper(clock, work, asked, say)
    clock.go(keeper.tell)
    return keeper


def end(keeper: Timekeeper) -> None:
    """Stop the clock, and say how much of the study's time is spent."""
    keeper.clock.stop()
    if said := at_the_end(keeper.asked, keeper.clock.spent()):
        keeper.say(said)


def at_the_start(
    variants: int,
    jobs: int,
    needed: Range,
    unknown: Sequence[str],
    rules: int,
    asked: float | None,
    spent: float,
) -> str:
    """The number of variants and jobs, their expected time on this machine, and its uncertainty."""
    basis = "as such jobs took before"
    if len(unknown) == rules:
        basis = "a first guess: no such job has ended here yet"
    elif unknown:
        basis = f"in part a guess: no job of {len(unknown)} of {rules} kinds has ended here yet"
    text = f"{variants} variants, {jobs} jobs: {in_words(needed)} on this machine ({basis})."
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
    named = [
        f"{one.variant} against {one.reference} ({_how_long(one.seconds)})"
        for one in found.unsettled[:NAMED]
    ]
    more = len(found.unsettled) - len(named)
    named += [f"{more} more"] * bool(more)
    next_time = found.next_seconds(spent) / 60
    return (
        f"{text} Undecided: {', '.join(named)}."
        f" With --config time={next_time:.0f}min the same command goes on with them."
    )


def _how_long(seconds: float | None) -> str:
    return "time does not help" if seconds is None else f"about {clock_text(seconds)} more"
