"""Whether the timed run matches the certified one: same kernels, allocator, threads, packages."""

from collections.abc import Iterable, Mapping, Sequence

from schemas.results import Certificate, PairedRun, Repeat, Session, Trajectory
from schemas.results.runs import StepKernels

MOST_NAMED = 4
"""Maximum number of operators listed by name; the rest are only counted."""


def timed_otherwise(timed: Repeat, run: Trajectory) -> list[str]:
    """How the timed run was computed differently from the short one, one clause per difference.

    Empty if either has no record of its kernels: a run that ended with another status, or one that
    resumed from a checkpoint.
    """
    if timed.status != "ok" or timed.kernels is None or run.kernels is None:
        return []
    packages = timed.provenance.packages, run.provenance.packages
    return [*_kernels(timed.kernels, run.kernels, as_timed(run)), *_packages(*packages)]


def turns_otherwise(run: PairedRun, side: str, certificate: Certificate) -> list[str]:
    """The same for the turns of a side, whose speed a comparison reports: how any of its
    sessions was computed differently from the certified training."""
    if run.status != "ok":
        return []
    return sessions_otherwise(run.sessions, side, run.provenance[side].packages, certificate)


def sessions_otherwise(
    sessions: Sequence[Session], side: str, packages: Mapping[str, str], certificate: Certificate
) -> list[str]:
    """The same for a side of any sessions, whose processes had these versions of ``packages``."""
    if certificate.kernels is None or certificate.provenance is None:
        return []
    found = [
        clause
        for kernels in _of_side(sessions, side)
        for clause in _kernels(kernels, certificate.kernels, certificate.as_timed)
    ]
    found += _packages(packages, certificate.provenance.packages)
    return list(dict.fromkeys(found))


def uncertified(
    sessions: Sequence[Session], side: str, certificates: Iterable[Certificate]
) -> list[str]:
    """Operators of a side without its own certificate that no other certificate names."""
    known = {name for c in certificates if c.kernels is not None for name in c.kernels.operators}
    taken = {name for kernels in _of_side(sessions, side) for name in kernels.operators}
    return sorted(taken - known)


def _of_side(sessions: Sequence[Session], side: str) -> Iterable[StepKernels]:
    for session in sessions:
        for each in session.sides:
            if each.name == side and each.kernels is not None:
                yield each.kernels


def as_timed(run: Trajectory) -> bool:
    """Whether steps without deterministic algorithms were checked too."""
    return bool(run.seeds and run.seeds[0].as_timed)


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
        # Some steps were compared without deterministic algorithms, too.
        if theirs != ours and not (field == "deterministic" and covered):
            yield f"{what}: {theirs} where timed, {ours} where certified"


def _packages(timed: Mapping[str, str], certified: Mapping[str, str]) -> Iterable[str]:
    for name in sorted(timed.keys() | certified.keys()):
        if timed.get(name) != certified.get(name):
            yield f"{name} {timed.get(name)} where timed, {certified.get(name)} where certified"
