"""Whether what was timed is what was certified: the same kernels, allocator, threads, packages."""

from collections.abc import Iterable

from schemas.results import Repeat, Trajectory
from schemas.results.kernels import StepKernels

MOST_NAMED = 4
"""Operators that are named; of more there is a count."""


def timed_otherwise(timed: Repeat, run: Trajectory) -> list[str]:
    """In what the timed run was computed otherwise than the short one, each in a clause.

    Nothing is said where one of them has no record of its kernels: a run that ended with another
    status, or one that went on from a checkpoint.
    """
    if timed.status != "ok" or timed.kernels is None or run.kernels is None:
        return []
    covered = bool(run.seeds and run.seeds[0].as_timed)
    packages = timed.provenance.packages, run.provenance.packages
    return [*_kernels(timed.kernels, run.kernels, covered), *_packages(*packages)]


def _kernels(timed: StepKernels, certified: StepKernels, covered: bool) -> Iterable[str]:
    for verb, these, others in (
        ("timed", timed, certified),
        ("certified", certified, timed),
    ):
        if only := sorted(set(these.operators) - set(others.operators)):
            rest = f" and {len(only) - MOST_NAMED} more" if len(only) > MOST_NAMED else ""
            yield f"{verb} only: {', '.join(only[:MOST_NAMED])}{rest}"
    for field, what in (
        ("compiled", "compiled layers"),
        ("deterministic", "deterministic algorithms"),
        ("allocator", "the allocator"),
        ("threads", "threads"),
    ):
        theirs, ours = getattr(timed, field), getattr(certified, field)
        # Without deterministic algorithms some steps were compared too.
        if theirs != ours and not (field == "deterministic" and covered):
            yield f"{what}: {theirs} where timed, {ours} where certified"


def _packages(timed: dict[str, str], certified: dict[str, str]) -> Iterable[str]:
    for name in sorted(timed.keys() | certified.keys()):
        if timed.get(name) != certified.get(name):
            yield f"{name} {timed.get(name)} where timed, {certified.get(name)} where certified"
