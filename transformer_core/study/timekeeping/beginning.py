"""What is said of a study's time when its jobs begin and when they have ended."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.base import seconds_of
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results.refinement import Refinement
from transformer_core.common.study_clock import RunningClock
from transformer_core.study.timekeeping.expectations import (
    Range,
    guesses,
    in_words,
    matrix_rate,
    total,
)
from transformer_core.study.timekeeping.progress_line import Timekeeper, Work, clock_text

REFINEMENT = Path("results/refinement.json")
NAMED = 5
"""Undecided comparisons that are named at the end."""


def begin(
    jobs: Sequence[Any],
    cores: int,
    study: Study,
    specs: Mapping[str, RunSpec],
    groups: Sequence[int],
    show: bool,
) -> tuple[Timekeeper, str]:
    """Start the clock for Snakemake's ``jobs``; what keeps it, and what to say at the start.

    ``groups`` are the sides of each comparison job.
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
    # Comparisons that go on take what is left, so they are no part of what must run.
    must = {rule: count for rule, count in counts.items() if rule != "refine"}
    needed = total(must, shares, known, guessed, start)
    unknown = sorted(rule for rule in must if rule not in known)
    said = at_the_start(len(specs), work.all, needed, unknown, len(must), asked, clock.spent())
    return Timekeeper(clock, work, asked, show=show, stream=sys.stderr), said


def at_the_start(
    variants: int,
    jobs: int,
    needed: Range,
    unknown: Sequence[str],
    rules: int,
    asked: float | None,
    spent: float,
) -> str:
    """How many variants and jobs, how long they take on this machine, and how sure that is."""
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
    """How long it took, and what more time would settle; nothing without a time of the study."""
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
