"""All sessions of sides that take turns, and a record for each comparison of two of them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.results import Pair, PairedRun, Provenance, Round, Session
from transformer_core.common.progress import SessionLines, log
from transformer_core.machine.provenance import collect
from transformer_core.measure.turns.kept_sessions import Kept
from transformer_core.measure.turns.session import SessionEndedError, Sessions
from transformer_core.measure.turns.sides import Side, for_devices
from transformer_core.measure.turns.stopping_rule import Stopped, enough, stop
from transformer_core.run.coordinator import COORDINATOR, Coordinator
from transformer_core.run.launcher import spans_machines
from transformer_core.run.statuses import Outcome


def compare(
    sides: Sequence[Side],
    comparing: Comparing,
    data: Path,
    folder: Path,
    command: str,
    code: str = "",
    again: Callable[[], None] = lambda: None,
) -> dict[str, PairedRun]:
    """:func:`compare_pairs` of every side but the first with the first; by name of the side."""
    reference, *variants = (side.name for side in sides)
    pairs = [Pair(variant, reference) for variant in variants]
    found = compare_pairs(sides, pairs, comparing, data, folder, command, code, again)
    return {pair.variant: run for pair, run in found.items()}


def compare_pairs(
    sides: Sequence[Side],
    pairs: Sequence[Pair],
    comparing: Comparing,
    data: Path,
    folder: Path,
    command: str,
    code: str = "",
    again: Callable[[], None] = lambda: None,
) -> dict[Pair, PairedRun]:
    """All sessions of the sides, below ``folder``; a record for each of ``pairs``.

    The first side is the one that says how many steps a turn has. Sessions of the same ``code``
    that are there already count, unless they have been recorded with the same settings: then the
    comparisons are asked for anew.

    A side that cannot train gives its status to all of its pairs, and the others begin anew without
    it. ``again`` is called where a side ended for a reason that may be gone.
    """
    started = datetime.now(UTC)
    comparing = for_devices(comparing, [side.spec for side in sides])
    found: dict[Pair, PairedRun] = {}
    while left := [pair for pair in pairs if pair not in found]:
        needed = [side for side in sides if any(side.name in pair for pair in left)]
        kept = Kept(folder, needed, comparing, code)
        found |= _sessions(kept, needed, left, comparing, data, command, started, again)
    return found


def _sessions(
    kept: Kept,
    sides: Sequence[Side],
    pairs: Sequence[Pair],
    comparing: Comparing,
    data: Path,
    command: str,
    started: datetime,
    again: Callable[[], None],
) -> dict[Pair, PairedRun]:
    """The records of ``pairs``, or of those with a side that ended before the others."""
    lines = SessionLines(f"{', '.join(side.name for side in sides[1:])} against {sides[0].name}")
    folder = kept.folder
    if kept.recorded(comparing):
        kept.forget()
    done = list(kept.read())
    if done:
        log.info("%s: going on after %d sessions", lines.name, len(done))
    stopped: Stopped | None = None
    ended: SessionEndedError | None = None
    several_hosts = any(spans_machines(side.spec) for side in sides)
    with Coordinator(folder / COORDINATOR, several_hosts) as coordinator:
        sessions = Sessions(sides, comparing, data, folder, coordinator, command, started, lines)
        try:
            stopped = _until_enough(sessions, pairs, lines, kept, done)
        except SessionEndedError as error:
            ended = error
            if error.outcome.again:
                again()
            log.info("%s: %s", lines.name, error)
    provenance = sessions.provenance or _provenance(sides, command, started)
    over = [pair for pair in pairs if ended is None or ended.side in pair]
    return {pair: _record(pair, sides, done, stopped, ended, provenance) for pair in over}


def _until_enough(
    sessions: Sessions,
    pairs: Sequence[Pair],
    lines: SessionLines,
    kept: Kept,
    done: list[Session],
) -> Stopped:
    """Make sessions, keep them and add them to ``done``; why there are no more of them."""
    judge = enough(pairs, sessions.comparing)
    while not (stopped := stop(done, pairs, sessions.comparing)):
        lines.session = len(done) + 1
        session = sessions.run(lines.session, judge)
        kept.add(session)
        done.append(session)
        said = []
        for pair in pairs:
            ratio = session.ratio(pair)
            said.append(f"{pair} {ratio.estimate:+.4f} +- {2 * ratio.error:.4f}")
        log.info(
            "%s, session %d: %.2f s, log ratios %s",
            *(lines.name, session.number, session.seconds, ", ".join(said)),
        )
    return stopped


def _record(
    pair: Pair,
    sides: Sequence[Side],
    done: Sequence[Session],
    stopped: Stopped | None,
    ended: SessionEndedError | None,
    provenance: Mapping[str, Provenance],
) -> PairedRun:
    """The record of a pair, without sessions where one of its sides ``ended`` before the others."""
    outcome = ended.outcome if ended else Outcome(status="ok", reason=None)
    return PairedRun(
        reference=pair.reference,
        variant=pair.variant,
        **outcome.of_a_result,
        ended_by=ended.side if ended else None,
        sessions=[] if ended else [of_two(session, pair) for session in done],
        others=[side.name for side in sides if side.name not in pair],
        stopped=stopped,
        seconds=sum(session.seconds for session in done),
        provenance={side: provenance[side] for side in pair[::-1]},
    )


def of_two(session: Session, pair: Pair) -> Session:
    """What a session says of two of its sides."""
    two = (pair.reference, pair.variant)
    rounds = [
        Round(windows=[window for window in rnd.windows if window.side in two])
        for rnd in session.rounds
    ]
    sides = sorted((s for s in session.sides if s.name in two), key=lambda s: two.index(s.name))
    return session.model_copy(
        update={"sides": sides, "rounds": rounds, "ratios": [session.ratio(pair)]}
    )


def _provenance(sides: Sequence[Side], command: str, started: datetime) -> dict[str, Provenance]:
    """As the workers would have told: this process imports torch for it."""
    return {side.name: collect(side.spec, command, started) for side in sides}
