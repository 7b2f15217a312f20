"""All sessions of variants against their reference, and a record for each variant."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.results import PairedRun, Provenance, Round, Session
from transformer_core.common.progress import SessionLines, log
from transformer_core.measure.machine.provenance import collect
from transformer_core.measure.processes.launcher import spans_machines
from transformer_core.measure.processes.statuses import Outcome
from transformer_core.measure.turns.kept_sessions import Kept
from transformer_core.measure.turns.session import DESK, SessionEndedError, Sessions
from transformer_core.measure.turns.session_ratio import session_ratio
from transformer_core.measure.turns.sides import Side, for_devices
from transformer_core.measure.turns.stopping_rule import Stopped, enough, stop
from transformer_core.measure.turns.turn_taking import Desk


def compare(
    sides: Sequence[Side],
    comparing: Comparing,
    data: Path,
    folder: Path,
    command: str,
    code: str = "",
    again: Callable[[], None] = lambda: None,
) -> dict[str, PairedRun]:
    """All sessions of the sides against the first, below ``folder``; a record for each side.

    Sessions of the same ``code`` that are there already count, unless they have been recorded with
    the same settings: then the comparison is asked for anew.

    A variant that cannot train gets its status, and the others begin anew without it. Where the
    reference cannot, none of them can be compared. ``again`` is called where a side ended for a
    reason that may be gone.
    """
    started = datetime.now(UTC)
    comparing = for_devices(comparing, [side.spec for side in sides])
    reference, *variants = sides
    found: dict[str, PairedRun] = {}
    while variants:
        kept = Kept(folder, [reference, *variants], comparing, code)
        found |= _sessions(kept, [reference, *variants], comparing, data, command, started, again)
        variants = [side for side in variants if side.name not in found]
    return found


def _sessions(
    kept: Kept,
    sides: Sequence[Side],
    comparing: Comparing,
    data: Path,
    command: str,
    started: datetime,
    again: Callable[[], None],
) -> dict[str, PairedRun]:
    """The records of all sides but the first, or of the side that ended before the others."""
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
    with Desk(folder / DESK, several_hosts) as desk:
        sessions = Sessions(sides, comparing, data, folder, desk, command, started, lines)
        try:
            stopped = _until_enough(sessions, lines, kept, done)
        except SessionEndedError as error:
            ended = error
            if error.outcome.again:
                again()
            log.info("%s: %s", lines.name, error)
    provenance = sessions.provenance or _provenance(sides, command, started)
    return _records(sides, done, stopped, ended, provenance)


def _until_enough(
    sessions: Sessions, lines: SessionLines, kept: Kept, done: list[Session]
) -> Stopped:
    """Make sessions, keep them and add them to ``done``; why there are no more of them."""
    reference, *variants = (side.name for side in sessions.sides)
    judge = enough(reference, variants, sessions.comparing)
    while not (stopped := stop(done, reference, variants, sessions.comparing)):
        lines.session = len(done) + 1
        session = sessions.run(lines.session, judge)
        kept.add(session)
        done.append(session)
        said = []
        for name in variants:
            ratio = session_ratio(session.rounds, reference, name)
            said.append(f"{name} {ratio.estimate:+.4f} +- {2 * ratio.error:.4f}")
        log.info(
            "%s, session %d: %.2f s, log ratios %s",
            *(lines.name, session.number, session.seconds, ", ".join(said)),
        )
    return stopped


def _records(
    sides: Sequence[Side],
    done: Sequence[Session],
    stopped: Stopped | None,
    ended: SessionEndedError | None,
    provenance: Mapping[str, Provenance],
) -> dict[str, PairedRun]:
    """The record of each variant; of one that ended before the others, only its own."""
    reference, *variants = (side.name for side in sides)
    if ended is not None and ended.side != reference:
        variants = [ended.side]
    outcome = ended.outcome if ended else Outcome(status="ok", reason=None)
    return {
        name: PairedRun(
            reference=reference,
            variant=name,
            **outcome.of_a_result,
            ended_by=ended.side if ended else None,
            sessions=[] if ended else [of_two(session, reference, name) for session in done],
            others=[side.name for side in sides[1:] if side.name != name],
            stopped=stopped,
            seconds=sum(session.seconds for session in done),
            provenance={side: provenance[side] for side in (reference, name)},
        )
        for name in variants
    }


def of_two(session: Session, reference: str, variant: str) -> Session:
    """What a session says of two of its sides."""
    two = (reference, variant)
    rounds = [
        Round(windows=[window for window in rnd.windows if window.side in two])
        for rnd in session.rounds
    ]
    sides = sorted((s for s in session.sides if s.name in two), key=lambda s: two.index(s.name))
    return session.model_copy(update={"sides": sides, "rounds": rounds})


def _provenance(sides: Sequence[Side], command: str, started: datetime) -> dict[str, Provenance]:
    """As the workers would have told: this process imports torch for it."""
    return {side.name: collect(side.spec, command, started) for side in sides}
