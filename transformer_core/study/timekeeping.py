"""The expected duration of a study, and its progress.

A job is expected to take as long as earlier jobs of its rule took on this host. Without any, its
duration is guessed from the time of a program's start and that of a training step: at first from
the start of this program and the host's matrix rate, later from the jobs that have ended. We assume
independent errors of rules.

While jobs run, a line in Snakemake's log reports the progress now and then. The events of that log
tell which jobs run and which have ended.
"""

import logging
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, median
from timeit import timeit
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from schemas.base import seconds_of
from schemas.config.data import FixedSize
from schemas.config.run_spec import LanguageModel, RunSpec
from schemas.config.study import Study
from schemas.errors import ConfigError
from schemas.results.comparisons import Comparison, Refinement
from schemas.results.data import LengthHistogram, ShardManifest
from transformer_core.common.records import read_as
from transformer_core.common.study_clock import JobTimes, RunningClock
from transformer_core.study.ownership import LEAST_BYTES
from transformer_core.study.reservations import most_tokens, step_flops

TRAINS = ("train", "train_again", "evaluate")
"""Rules whose jobs take about as long as a training."""
FEW_STEPS = MappingProxyType({"memory": 10, "profile": 4, "short_run": 30})
"""Rules whose jobs take a few steps, however long a training is, and about how many."""
STEPS = (*TRAINS, *FEW_STEPS)
"""Rules whose times show how long steps take."""
STARTS = MappingProxyType(
    dict.fromkeys(("resolve_spec", "short_spec", "describe_study", "hardware"), 0.05)
    | dict.fromkeys(("combine", "certify", "shards", "tokenizer", "read_corpus"), 0.2)
    | {"breakdown": 0.3, "page": 4.0, "compute_times": 2.0, "audit": 8.0, "largest_batch": 15.0}
)
"""Durations of jobs of other rules, over the time that this program takes to start."""
LIMITS = MappingProxyType({"roofline": 180, "collectives": 130})
"""Rules that measure limits of the machine, and about how many measurements they make."""
SENTENCE = 40  # tokens of the longest sentence in a batch, as long as no lengths are known
OVERHEAD = 1.4  # time of a step over that of its matrix products
KNOWN, ALIKE, GUESSED = 0.15, 0.4, 0.6
"""Relative errors of an expectation: if jobs of the rule have ended, if only others have, and if none
has."""
SPREAD = 0.25  # additional error for one job of a rule; the mean of several is known better
REST = 0.15
"""Share of its time that a job has left at least: of the expected time, or of that so far if it is
longer."""
TINY = 1e-9  # seconds, to avoid division by zero
LARGE = 512  # width of the matrices that are multiplied
PRODUCTS = 20  # number of products timed together
LINE_SECONDS = 30.0  # minimum seconds between two lines in the log
REFINEMENT = Path("results/refinement.json")
SHOWN, LINES = 2, 3  # maximum number of failed jobs named at the end, and of lines from their logs
NAMED = 5  # maximum number of undecided comparisons named at the end


class Range(NamedTuple):
    """Seconds, from and to."""

    low: float
    high: float

    def __str__(self) -> str:
        """In words: about 3 min, 40 to 90 s."""
        low, high = (max(1, round(value)) for value in self)
        unit, size = ("s", 1) if high < 120 else ("min", 60) if high < 7_200 else ("h", 3_600)
        first, last = (f"{n / size:.0f}" if n >= size else f"{n / size:.1f}" for n in (low, high))
        return f"about {first} {unit}" if first == last else f"{first} to {last} {unit}"


def matrix_rate() -> float:
    """Floating-point operations per second of products of 32-bit matrices here, on all cores.

    If other programs interrupt them, this counts: they will interrupt the jobs as well.
    """
    import numpy as np  # slow to import, and planning does not need it

    matrix = np.ones((LARGE, LARGE), np.float32)
    matrix @ matrix  # starts the threads
    return PRODUCTS * 2.0 * LARGE**3 / timeit(lambda: matrix @ matrix, number=PRODUCTS)


def step_seconds(
    study: Study,
    specs: Mapping[str, RunSpec],
    rate: float,
    lengths: LengthHistogram | None = None,
) -> float:
    """Guessed seconds of a training step; ``rate`` is the result of :func:`matrix_rate`, ``lengths``
    are those of the training pairs in tokens, once they are known."""
    vocabulary = study.tokenizer.vocabulary
    flops = (step_flops(spec, vocabulary, usual_tokens(spec, lengths)) for spec in specs.values())
    return OVERHEAD * fmean(flops) / rate


def usual_tokens(spec: RunSpec, lengths: LengthHistogram | None) -> float:
    """Expected tokens of a global batch, padding included."""
    batching, most = spec.batching, most_tokens(spec)
    if not isinstance(batching, FixedSize) or isinstance(spec.task, LanguageModel):
        return most  # batches are about full
    pairs = batching.scaled_pairs
    if lengths is None:
        return min(most, 2.0 * pairs * (SENTENCE + 1))
    return pairs * sum(1 + longest_of(pairs, found) for found in (lengths.source, lengths.target))


def longest_of(number: int, lengths: Mapping[int, int]) -> float:
    """Expected length of the longest of ``number`` random sentences; ``lengths`` are the numbers of
    sentences by length."""
    total, below, expected = max(1, sum(lengths.values())), 0, 0.0
    for length, count in sorted(lengths.items()):
        up_to = below + count
        expected += length * ((up_to / total) ** number - (below / total) ** number)
        below = up_to
    return expected


def lengths_of(manifest: Path) -> LengthHistogram | None:
    """Lengths of the sentences in tokens, by the manifest of their shards; None if there is none."""
    try:
        return ShardManifest.model_validate_json(manifest.read_bytes()).lengths
    except (OSError, ValidationError):  # the rule that needs it reports a damaged one
        return None


def guesses(
    study: Study,
    variants: int,
    groups: Mapping[str, int],
    shares: Mapping[str, float],
    start: float,
    step: float,
) -> dict[str, float]:
    """Guessed seconds of a job of each rule, if a program takes ``start`` seconds to start, and a
    training step ``step`` seconds.

    ``groups`` are the numbers of sides of the jobs that take turns, by name. Steps of a rule's jobs
    take longer if they get a share of the cores: ``shares``, by rule.
    """
    found = {rule: share * start for rule, share in STARTS.items()}
    found |= dict.fromkeys(TRAINS, start + study.training.steps * step)
    found |= {r: start + steps * step / shares.get(r, 1.0) for r, steps in FEW_STEPS.items()}
    if study.evaluation.max_pairs == 0:
        found["evaluate"] = 0.2 * start  # it translates nothing
    # It measures a process of its own first.
    found["predict_memory"] = (5 + 0.5 * variants) * start
    found |= {rule: 2 * start + count * study.limits.seconds for rule, count in LIMITS.items()}

    def session(sides: float) -> float:
        asked = study.comparison
        # The reference has several processes.
        players = sides - 1 + max(1, round(sqrt(sides - 1)))
        window = asked.window_seconds / step if step else 0.0
        # A small batch takes longer than its share: every weight is read and updated.
        turn = asked.lead_steps * sqrt(asked.lead_batch) + max(asked.window_steps, window)
        # The first steps take twice as long.
        steps = 2 * max(2, asked.warmup_steps) + asked.pairs * turn
        return players * (0.2 * start + steps * step)

    # Every comparison has this many sessions, whatever its budget.
    least = study.comparison.sessions_least
    found |= {
        turns(group): max(least * session(sides), start + study.comparison.budget * sides / 2)
        for group, sides in groups.items()
    }
    if study.search is not None and study.search.budget:
        half = study.search.budget / 2
        # The final comparison takes only as many sides as there is time for.
        final = max(half, least * session(3))
        found["search"] = max(half, session(study.search.together)) + final
    found["tune"] = start + study.tuning_seconds
    if study.quality is not None:
        # Two trainings, one of them faster; a higher BLEU takes longer.
        race = 1.6 * study.quality.steps * step * min(1.0, 0.5 + (study.quality.bleu or 0.0) / 100)
        found["quality"] = start + min(study.quality.budget, race)
    return found


def turns(group: str) -> str:
    """The name of a job that takes turns, among the guesses."""
    return f"turns {group}"


def kind(rule: str) -> str:
    return rule.partition(" ")[0]


@dataclass
class Forecast:
    """How long the jobs of a study take. A job is identified by its rule; one that takes turns, also
    by its group (:func:`turns`)."""

    known: Mapping[str, JobTimes]  # times of earlier jobs, by rule
    guessed: Callable[[float, float], Mapping[str, float]]
    """Seconds by job, for the seconds of a start and of a step: :func:`guesses`."""
    start: float  # guessed seconds of a job's start
    step: float  # guessed seconds of a training step
    shares: Mapping[str, float]  # share of the cores that a job of each rule reserves
    ended: dict[str, list[str]] = field(default_factory=dict)
    """Jobs that have ended in this session, by rule."""

    def __post_init__(self) -> None:
        self._first = self.guessed(self.start, self.step)
        self._starts = self.guessed(self.start, 0.0)

    def job(self, job: str) -> Range:
        seconds, error = self._job(job)
        return Range(seconds * (1 - error), seconds * (1 + error))

    def _ended(self, rules: Iterable[str]) -> list[str]:
        """Those of the rules of which a job has ended."""
        return [rule for rule in rules if rule in self.known and self.known[rule].count]

    def _took(self, rule: str, guesses: Mapping[str, float], start: float) -> tuple[float, float]:
        """Mean seconds of the jobs of a rule that have ended, and those expected by ``guesses``, or
        those of a ``start`` if there is none."""
        alike = [job for job in guesses if kind(job) == rule] or [rule]
        expected = [guesses.get(job, start) for job in self.ended.get(rule) or alike]
        return self.known[rule].mean, max(TINY, fmean(expected))

    def _corrected(self) -> tuple[float, float, bool]:
        """Seconds of a start and of a step, by the jobs that have ended, and whether any has shown
        how long steps take."""
        without_steps = [
            rule for rule, seconds in self._starts.items() if seconds == self._first[rule]
        ]
        took = [self._took(rule, self._first, self.start) for rule in self._ended(without_steps)]
        factors = [mean / expected for mean, expected in took]
        start = self.start * (median(factors) if factors else 1.0)
        starts = self.guessed(start, 0.0)
        trained = spent = 0.0
        for rule in self._ended(STEPS):
            mean, expected = self._took(rule, self._first, self.start)
            trained += max(0.0, expected - self._starts[rule])
            spent += max(0.0, mean - starts[rule])
        seen = trained > 0.0 and spent > 0.0
        return start, self.step * spent / trained if seen else self.step, seen

    def _job(self, job: str) -> tuple[float, float]:
        """Expected seconds of a job, and the relative error."""
        start, step, seen = self._corrected()
        guess = self.guessed(start, step)
        seconds = max(TINY, guess.get(job, start))
        for rule in self._ended([kind(job)]):
            mean, expected = self._took(rule, guess, start)
            return seconds * mean / expected, KNOWN + SPREAD / sqrt(self.known[rule].count)
        return seconds, ALIKE if seen else GUESSED

    def jobs(self, counts: Mapping[str, float]) -> Range:
        """Seconds for these numbers of jobs, each of which takes its share of the machine."""
        by_rule: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for job, count in counts.items():
            seconds, error = self._job(job)
            seconds *= count * self.shares.get(kind(job), 1.0)
            total = by_rule[kind(job)]
            total[0] += seconds
            total[1] += seconds * error
        middle = sum(seconds for seconds, _ in by_rule.values())
        reach = hypot(*(error for _, error in by_rule.values()))
        return Range(max(0.0, middle - reach), middle + reach)


class Timekeeper(logging.Handler):
    """Keeps the clock of a study from the events of Snakemake's log, and reports its progress."""

    def __init__(
        self,
        clock: RunningClock,
        counts: Mapping[str, int],
        forecast: Forecast,
        asked: float | None,
        say: Callable[[str], None],
        step: Callable[[], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``counts`` are the numbers of jobs, ``asked`` is the time limit of the study in seconds.

        ``step`` estimates the seconds of a training step again once the sentences are tokenized.
        """
        super().__init__()
        self.step = step
        self.clock, self.forecast, self.asked, self.say, self.now = clock, forecast, asked, say, now
        self.todo = Counter(counts)
        self.all = self.todo.total()
        self.running: dict[int, tuple[str, float, str]] = {}
        """By number of the job: its name, start and message."""
        self.failed: dict[int, tuple[str, Sequence[str]]] = {}
        """By number: messages of jobs whose last attempt failed, and their logs."""
        self.said = now()

    def emit(self, record: logging.LogRecord) -> None:
        """Handles an event of a job; an error here must not stop Snakemake."""
        try:
            self._take_in(vars(record))
        except Exception:  # as handlers of the standard library do
            self.handleError(record)

    def _take_in(self, said: Mapping[str, Any]) -> None:
        event = getattr(said.get("event"), "value", None)
        if event == "job_info":
            job = str(said["rule_name"])
            job = turns(said["wildcards"]["group"]) if job == "turns" else job
            self.running[int(said["jobid"])] = job, self.now(), str(said["rule_msg"] or job)
        elif event == "job_error":
            number = int(said["jobid"])
            _, _, message = self.running.pop(number, ("", 0.0, str(said["rule_name"])))
            self.failed[number] = message, said["log"]
        elif event == "job_finished" and (found := self.running.pop(int(said["job_id"]), None)):
            self.failed.pop(int(said["job_id"]), None)  # another attempt was made (retries)
            job, began, _ = found
            rule, forecast = kind(job), self.forecast
            self.clock.job_done(rule, self.now() - began, forecast.shares.get(rule, 1.0))
            forecast.known = self.clock.clock.jobs
            forecast.ended.setdefault(rule, []).append(job)
            self.todo[job] -= 1
            if rule.endswith("shards"):
                self.forecast = replace(forecast, step=self.step())

    def tell(self) -> None:
        if self.now() - self.said >= LINE_SECONDS:
            self.said = self.now()
            self.say(self.line())

    def left(self) -> Range:
        found, spent = self.forecast.jobs(self.todo), 0.0
        for job, began, _ in list(self.running.values()):  # jobs end in another thread
            expected, took = fmean(self.forecast.job(job)), self.now() - began
            # The longer a job is overdue, the longer it may still take.
            rest = max(expected - took, REST * max(expected, took))
            spent += (expected - rest) * self.forecast.shares.get(kind(job), 1.0)
        left = Range(max(0.0, found.low - spent), max(0.0, found.high - spent))
        if self.asked and self.todo["refine"] > 0:
            # Comparisons continue until the time is spent.
            rest = self.asked - self.clock.spent()
            left = Range(max(left.low, rest), max(left.high, rest))
        return left

    def line(self) -> str:
        of = f" of {clock_text(self.asked)}" if self.asked else ""
        done = self.all - self.todo.total()
        text = (
            f"{done} of {self.all} jobs, {clock_text(self.clock.spent())}{of}, {self.left()} left"
        )
        doing = list(self.running.values())
        if not doing:
            return text
        overdue = [one for one in doing if self.now() - one[1] > self.forecast.job(one[0]).high]
        job, began, what = (overdue or doing)[-1]
        text += f" | {what.splitlines()[0]}"
        if overdue:
            text += f", for {clock_text(self.now() - began)}: {self.forecast.job(job)} expected"
        return text


def clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def begin(
    jobs: Sequence[Any],
    cores: int,
    study: Study,
    specs: Mapping[str, RunSpec],
    groups: Mapping[str, int],
    manifest: Path,
    say: Callable[[str], None],
    start: float,
    rate_of_gpu: float | None = None,
) -> Timekeeper:
    """Start the clock for Snakemake's ``jobs`` and ``say`` how long they should take.

    ``groups`` are the numbers of sides of comparison jobs, by name; ``manifest`` is that of the
    training pairs' shards; ``start`` are the seconds that a program takes to start; ``rate_of_gpu``
    are the operations per second to expect of a GPU, if the study trains on one. The caller adds the
    timekeeper to Snakemake's log as a handler, and ends it with :func:`end`.
    """
    counts = Counter(
        turns(job.wildcards.group) if job.rule.name == "turns" else job.rule.name for job in jobs
    )
    shares = {job.rule.name: min(1.0, int(job.threads) / max(1, cores)) for job in jobs}
    asked = seconds_of(study.time) if study.time else None
    if rate_of_gpu is not None:
        study = study.model_copy(update={"comparison": study.comparison.on_gpus()})
    # On a GPU, steps do not depend on the cores of a job.
    guessed = partial(guesses, study, len(specs), groups, shares if rate_of_gpu is None else {})
    rate = rate_of_gpu or matrix_rate()

    def step() -> float:
        return step_seconds(study, specs, rate, lengths_of(manifest))

    clock = RunningClock()
    forecast = Forecast(clock.clock.jobs, guessed, start, step(), shares)
    say(at_the_start(len(specs), counts, forecast, asked, clock.spent()))
    keeper = Timekeeper(clock, counts, forecast, asked, say, step)
    clock.go(keeper.tell)
    return keeper


def end(keeper: Timekeeper) -> None:
    """Stop the clock, and report the time spent, and the jobs that failed."""
    keeper.clock.stop()
    for message, logs in [*keeper.failed.values()][:SHOWN]:
        keeper.say("\n    ".join([f"Failed: {message} ({', '.join(logs)})", *last_words(logs)]))
    # Then no log may say so.
    if keeper.failed and shutil.disk_usage(REFINEMENT.parent).free < LEAST_BYTES:
        keeper.say("The disk is full. Make room; the same command goes on from here.")
    if said := at_the_end(keeper.asked, keeper.clock.spent()):
        keeper.say(said)


def last_words(logs: Sequence[str]) -> list[str]:
    """The last lines of logs: why their job failed."""
    lines: list[str] = []
    for file in logs:
        with suppress(OSError):
            lines += Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip()][-LINES:]


def at_the_start(
    variants: int, counts: Mapping[str, int], forecast: Forecast, asked: float | None, spent: float
) -> str:
    """The number of variants and jobs, and their expected time on this machine with its basis."""
    # Continued comparisons only take the time that is left: they are not required.
    must = {rule: count for rule, count in counts.items() if rule != "refine"}
    needed, rules = forecast.jobs(must), {kind(job) for job in must}
    unknown = len(rules - forecast.known.keys())
    basis = "from earlier jobs of the same kind"
    if unknown == len(rules):
        basis = "a first guess: no such job has finished here yet"
    elif unknown:
        basis = (
            f"partly a guess: {unknown} of {len(rules)} kinds of jobs have not finished here yet"
        )
    jobs = sum(counts.values())
    named = f"{variants} variant{'s' * (variants != 1)}, {jobs} job{'s' * (jobs != 1)}"
    text = f"{named}: {needed} on this machine ({basis})."
    if asked is None:
        return text
    text += f" The time limit is {clock_text(asked)}"
    text += f", of which {clock_text(spent)} is spent. " if spent >= 1 else ". "
    if "tune" in counts:
        return text + "Techniques are tried until it is reached."
    if asked - spent < needed.low:
        return text + "The required jobs take longer: comparisons get only their first round."
    return text + "The time left goes to undecided comparisons."


def at_the_end(asked: float | None, spent: float, record: Path = REFINEMENT) -> str:
    """The time spent, and the comparisons that more time would decide; empty without a time limit."""
    if asked is None:
        return ""
    text = f"{clock_text(spent)} of {clock_text(asked)} is spent."
    try:
        found = Refinement.model_validate_json(record.read_bytes())
    except (OSError, ValidationError):
        return text
    if not found.unsettled:
        try:
            compared = read_as(record.with_name("comparisons.json"), list[Comparison])
        except ConfigError:  # not compared, because a job failed
            return text
        if not any(one.counts for one in compared):
            return f"{text} No comparison counts; the report says why."
        return f"{text} Every comparison that counts has a verdict."
    named = []
    for one in found.unsettled[:NAMED]:
        more = "more time does not help"
        if one.seconds is not None:
            more = f"about {clock_text(one.seconds)} more"
        named.append(f"{one.variant} against {one.reference} ({more})")
    if others := len(found.unsettled) - len(named):
        named.append(f"{others} more")
    return (
        f"{text} Undecided: {', '.join(named)}. With --config "
        f"time={found.next_seconds(spent) / 60:.0f}min the same command continues them."
    )
