"""How long jobs are expected to take: as others of their rule took on this host, else a guess.

A guess is a range. It rests on what this host does at the time: how fast it multiplies matrices,
and how long this very program took to start. Once jobs that train have ended, those of the other
rules that train are expected at the same place of their ranges.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, prod
from statistics import fmean

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from transformer_core.common.study_clock import JobTimes
from transformer_core.study.reservations import step_flops

STARTS = (0.3, 2.0)
"""Least and most that a job takes to start, in times of this program's start: a fork of a process
that has imported everything, and an import from a slow disk."""
EFFICIENCY = (1.5, 0.3)
"""Most and least of the rate of a matrix product that a training would reach if all its rows were
as long as they may be: the shorter they are, the faster it seems."""
TRAINS = ("train", "train_again", "short_run", "evaluate", "profile", "memory")
"""Rules whose jobs are about as long as a training."""
ALIKE = (0.6, 1.7)
"""Range around the place where others that train were in their ranges."""
LARGE = 512
"""Width of the matrices that are multiplied."""
TRIES = 20
"""Products of which the fastest counts: on a busy host most are interrupted."""
SPREAD = (0.8, 1.3)
"""Range around what jobs of the same rule took before."""


@dataclass(frozen=True)
class Range:
    """Seconds, from and to."""

    low: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> "Range":
        """Of so many, or of a share."""
        return Range(self.low * factor, self.high * factor)


def matrix_rate() -> float:
    """Floating-point operations per second of a product of two 32-bit matrices here."""
    import numpy as np  # who only plans needs no numpy

    matrix = np.ones((LARGE, LARGE), np.float32)
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2.0 * prod(matrix.shape) * LARGE / best


def guesses(
    study: Study, specs: Mapping[str, RunSpec], groups: Sequence[int], start: float, rate: float
) -> dict[str, Range]:
    """A guess for a job of each rule that trains or is budgeted; of others, see :func:`expected`.

    ``groups`` are the sides of each comparison job, ``start`` the seconds that this program took
    to start, ``rate`` what :func:`matrix_rate` says.
    """
    flops = [step_flops(spec, study.tokenizer.vocabulary) for spec in specs.values()]
    step = sum(flops) / len(flops) / rate
    # A step is computed, a training runs its steps.
    training = Range(*(study.training.steps * step / share for share in EFFICIENCY))
    begin = Range(*(factor * start for factor in STARTS))
    found = dict.fromkeys(TRAINS, begin + training)
    if groups:
        budget = study.comparison.budget * sum(groups) / len(groups) / 2
        found["turns"] = begin + Range(budget / 2, 1.5 * budget)
    if study.search is not None:
        budget = study.search.budget
        found["search"] = begin + training + Range(0.8 * budget, 1.5 * budget)
    if study.quality is not None:
        budget = study.quality.budget
        found["quality"] = begin + Range(0.2 * budget, 1.2 * budget)
    return found


def expected(
    rule: str, known: Mapping[str, JobTimes], guessed: Mapping[str, Range], start: float
) -> Range:
    """Seconds of a job of a rule."""
    if rule in known and known[rule].count:
        return Range(*(factor * known[rule].mean for factor in SPREAD))
    if rule in TRAINS and rule in guessed:
        return _as_others(guessed[rule], known, guessed)
    return guessed.get(rule, Range(*(factor * start for factor in STARTS)))


def _as_others(guess: Range, known: Mapping[str, JobTimes], guessed: Mapping[str, Range]) -> Range:
    """A guess for jobs that train, narrowed to where those that have ended were in theirs."""
    places = [
        log(known[rule].mean / guessed[rule].low) / log(guessed[rule].high / guessed[rule].low)
        for rule in TRAINS
        if rule in guessed and rule in known and known[rule].seconds > 0
    ]
    if not places or guess.low <= 0:
        return guess
    mean = guess.low * (guess.high / guess.low) ** fmean(places)
    return Range(*(factor * mean for factor in ALIKE))


def total(
    counts: Mapping[str, int],
    shares: Mapping[str, float],
    known: Mapping[str, JobTimes],
    guessed: Mapping[str, Range],
    start: float,
) -> Range:
    """Seconds of so many jobs of each rule, each of which takes a share of the machine."""
    found = Range(0.0, 0.0)
    for rule, count in counts.items():
        found += expected(rule, known, guessed, start).times(count * shares.get(rule, 1.0))
    return found


def in_words(seconds: Range) -> str:
    """Text of a range: about 3 min, 40 to 90 s."""
    low, high = (max(1, round(value)) for value in (seconds.low, seconds.high))
    unit, size = ("s", 1) if high < 120 else ("min", 60) if high < 7_200 else ("h", 3_600)
    ends = [
        f"{value / size:.0f}" if value >= size else f"{value / size:.1f}" for value in (low, high)
    ]
    return f"about {ends[0]} {unit}" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} {unit}"
