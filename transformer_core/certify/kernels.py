"""Did the timed run use the same kernels, allocator, threads and packages as the certified one?"""

from collections.abc import Iterable, Mapping, Sequence

from schemas.results import Certificate, PairedRun, Repeat, Session, Trajectory
from schemas.results.runs import StepKernels

MOST_NAMED = 4
"""Maximum number of operators that a clause names; it counts the rest."""


def timed_otherwise(timed: Repeat, run: Trajectory) -> list[str]:
    """How the computation of the timed run differed from that of the short run, one clause for each
    difference. Empty if its status is not ok. Without warm-up it has no record of its kernels."""
    if timed.status != "ok":
        return []
    found = _packages(timed.provenance.packages, run.provenance.packages)
    if timed.kernels is None or run.kernels is None:
        return [*found]
    # After resuming, a step finds the state that a first step makes, with operators of its own.
    return [*_kernels(timed.kernels, run.kernels, as_timed(run), bool(timed.resumed_at)), *found]


def turns_otherwise(run: PairedRun, side: str, certificate: Certificate) -> list[str]:
    """How any session of a side of a comparison differed from the certified training."""
    if run.status != "ok":
        return []
    return sessions_otherwise(run.sessions, side, run.provenance[side].packages, certificate)


def sessions_otherwise(
    sessions: Sequence[Session], side: str, packages: Mapping[str, str], certificate: Certificate
) -> list[str]:
    """The same for one side of any sessions, whose processes used these versions of ``packages``."""
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
    """The operators of a side without a certificate of its own that no certificate covers."""
    known = {name for c in certificates if c.kernels is not None for name in c.kernels.operators}
    taken = {name for kernels in _of_side(sessions, side) for name in kernels.operators}
    return sorted(taken - known)


def _of_side(sessions: Sequence[Session], side: str) -> Iterable[StepKernels]:
    for session in sessions:
        for each in session.sides:
            if each.name == side and each.kernels is not None:
                yield each.kernels


def as_timed(run: Trajectory) -> bool:
    """Whether the short run also checked steps without deterministic algorithms."""
    return bool(run.seeds and run.seeds[0].as_timed)


def _kernels(
    timed: StepKernels, certified: StepKernels, covered: bool, resumed: bool = False
) -> Iterable[str]:
    sides = [("timed", timed, certified), ("certified", certified, timed)]
    for verb, these, others in sides[:1] if resumed else sides:
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
        # A certificate that also checked steps without deterministic algorithms covers both.
        if theirs != ours and not (field == "deterministic" and covered):
            yield f"{what}: {theirs} where timed, {ours} where certified"


def _packages(timed: Mapping[str, str], certified: Mapping[str, str]) -> Iterable[str]:
    for name in sorted(timed.keys() | certified.keys()):
        if timed.get(name) != certified.get(name):
            yield f"{name} {timed.get(name)} where timed, {certified.get(name)} where certified"
