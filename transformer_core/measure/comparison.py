"""All sessions of sides that take turns, and a record for each comparison of two of them.

Every complete session is kept in a file, so that a killed job resumes with the next one, and a job
that is asked for more sessions builds on the existing ones. The numbers of rounds and of sessions
depend on the error within sessions and on the budget.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from schemas.config.measurement import Comparing
from schemas.results import Pair, PairedRun, Provenance, Round, Session
from transformer_core.common.digests import check, write_result
from transformer_core.common.files import write_text
from transformer_core.common.progress import SessionLines, log
from transformer_core.machine.provenance import collect
from transformer_core.measure.session_ratio import session_ratio
from transformer_core.measure.sessions import Enough, SessionEndedError, Sessions, Side
from transformer_core.run.statuses import Outcome
from transformer_core.study.users_files import own_models


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
    """Runs all sessions of the sides, below ``folder``; returns a record for each of ``pairs``.

    The first side determines the number of steps in a turn. Existing sessions of the same ``code``
    count, unless they have been recorded with the same settings: then the comparisons are repeated.

    All pairs of a side that cannot train get its status, and the other sides restart without it.
    Calls ``again`` if a side ended for a reason that may be temporary.
    """
    found: dict[Pair, PairedRun] = {}
    while left := [pair for pair in pairs if pair not in found]:
        needed = [side for side in sides if any(side.name in pair for pair in left)]
        kept = Kept(folder, needed, comparing, code)
        found |= _sessions(kept, needed, left, comparing, data, command, again)
    return found


Stopped = Literal["precision", "sessions", "budget"]
"""Why a comparison needs no further session."""


def kept_in(path: Path, *fields: str) -> list[Any] | None:
    """The session in a file, and further ``fields`` of it; None if it is missing or damaged."""
    try:
        check(path)
        kept = json.loads(path.read_text())
        return [Session.model_validate(kept["session"]), *(kept[field] for field in fields)]
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Kept:
    """The sessions of a comparison, each in one file in ``folder``.

    ``key`` identifies the comparison: files with another key belong to another one. ``code`` is a
    digest of the programs that run the sessions; the user's own models count, too. ``first`` is the
    number of the first session.
    """

    def __init__(
        self,
        folder: Path,
        sides: Sequence[Side],
        comparing: Comparing,
        code: str = "",
        first: int = 1,
    ) -> None:
        self.folder, self.first = folder, first
        named = [[side.name, side.spec.digest(), side.planted] for side in sides]
        how = comparing.model_dump(mode="json", exclude=_HOW_MANY)
        text = json.dumps([named, how, code, own_models(side.spec for side in sides)])
        self.key = hashlib.sha256(text.encode()).hexdigest()

    def read(self) -> Iterator[Session]:
        """The sessions from the first one up to the first gap."""
        for number in range(self.first, sys.maxsize):
            kept = kept_in(self._path(number), "key")
            if kept is None or kept[1] != self.key:
                return
            yield kept[0]

    def add(self, session: Session) -> None:
        """Saves a session."""
        kept = {"key": self.key, "session": session.model_dump(mode="json")}
        write_result(self._path(session.number), json.dumps(kept))

    def recorded(self, comparing: Comparing) -> bool:
        """Whether the last comparison here finished with exactly these settings."""
        file = self.folder / _RECORDED
        return file.exists() and file.read_bytes() == comparing.canonical_json().encode()

    def forget(self) -> None:
        """Deletes all of them."""
        for path in self.folder.glob(_SESSIONS):
            path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"session-{number}.json"


def _sessions(
    kept: Kept,
    sides: Sequence[Side],
    pairs: Sequence[Pair],
    comparing: Comparing,
    data: Path,
    command: str,
    again: Callable[[], None],
) -> dict[Pair, PairedRun]:
    """The records of ``pairs``; if a side ended early, only those of its pairs."""
    lines = SessionLines(f"{', '.join(side.name for side in sides[1:])} against {sides[0].name}")
    folder = kept.folder
    if kept.recorded(comparing):
        kept.forget()
    done = list(kept.read())
    if done:
        log.info("%s: resuming after %d sessions", lines.name, len(done))
    stopped: Stopped | None = None
    ended: SessionEndedError | None = None
    with Sessions.opened(sides, comparing, data, folder, command, lines) as sessions:
        judge = enough(pairs, comparing)
        try:
            while not (stopped := stop(done, pairs, comparing)):
                lines.session = len(done) + 1
                session = sessions.run(lines.session, judge)
                kept.add(session)
                done.append(session)
                ratios = [(pair, session.ratio(pair)) for pair in pairs]
                said = [f"{pair} {r.estimate:+.4f} +- {2 * r.error:.4f}" for pair, r in ratios]
                log.info(
                    "%s, session %d: %.2f s, log ratios %s",
                    *(lines.name, session.number, session.seconds, ", ".join(said)),
                )
        except SessionEndedError as error:
            ended = error
            if error.outcome.again:
                again()
            log.info("%s: %s", lines.name, error)
    # Usually the workers have reported it: this process would import torch for it.
    provenance = sessions.provenance or {
        side.name: collect(side.spec, command, sessions.started) for side in sides
    }
    over = [pair for pair in pairs if ended is None or ended.side in pair]
    return {pair: _record(pair, sides, done, stopped, ended, provenance) for pair in over}


def _record(
    pair: Pair,
    sides: Sequence[Side],
    done: Sequence[Session],
    stopped: Stopped | None,
    ended: SessionEndedError | None,
    provenance: Mapping[str, Provenance],
) -> PairedRun:
    """The record of a pair; without sessions if one of its sides ``ended`` early."""
    outcome = ended.outcome if ended else Outcome(status="ok", reason=None)
    return outcome.result(
        PairedRun,
        reference=pair.reference,
        variant=pair.variant,
        ended_by=ended.side if ended else None,
        sessions=[] if ended else [of_two(session, pair) for session in done],
        others=[side.name for side in sides if side.name not in pair],
        stopped=stopped,
        seconds=sum(session.seconds for session in done),
        provenance={side: provenance[side] for side in pair[::-1]},
    )


def of_two(session: Session, pair: Pair) -> Session:
    """The part of a session that concerns two of its sides."""
    two = (pair.reference, pair.variant)
    rounds = [
        rnd.model_copy(update={"windows": [w for w in rnd.windows if w.side in two]})
        for rnd in session.rounds
    ]
    by_name = {side.name: side for side in session.sides}
    sides = [by_name[name] for name in two]
    return session.model_copy(
        update={"sides": sides, "rounds": rounds, "ratios": [session.ratio(pair)]}
    )


_SESSIONS = "session-*.json"

_RECORDED = ".recorded.json"

_HOW_MANY = {"pairs", "sessions_least", "sessions_most", "precision", "budget", "margin"}
"""Settings that determine only the number of sessions and rounds, or their analysis."""


def leave_sessions(folder: Path, comparing: Comparing, resumes: bool = False) -> None:
    """Empties the folder of a recorded comparison, except for its sessions, from which a comparison
    with other settings for their number can resume; if this one ``resumes``, also with the same."""
    if resumes:
        (folder / _RECORDED).unlink(missing_ok=True)
    else:
        write_text(folder / _RECORDED, comparing.canonical_json())
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif not path.match(_SESSIONS) and not path.name.startswith("."):
            path.unlink(missing_ok=True)


def stop(
    sessions: Sequence[Session], pairs: Sequence[Pair], comparing: Comparing
) -> Stopped | None:
    """The reason why ``pairs`` need no further session; None if they do.

    Only the error within sessions decides, never the spread between them: stopping when two happen
    to agree would make all intervals too narrow.
    """
    if len(sessions) < comparing.sessions_least:
        return None
    if len(sessions) >= comparing.sessions_most:
        return "sessions"
    if all(_error(sessions, pair) < comparing.precision for pair in pairs):
        return "precision"
    spent = [session.seconds for session in sessions]
    if sum(spent) + fmean(spent) > _budget(comparing, pairs):
        return "budget"
    return None


def enough(pairs: Sequence[Pair], comparing: Comparing) -> Enough:
    """Decides when a session has its share of the precision, or of the budget."""
    part = _budget(comparing, pairs) / comparing.sessions_least

    def precise(rounds: Sequence[Round], pair: Pair) -> bool:
        """Whether the comparison would be precise enough if all sessions were like this one."""
        error = session_ratio(rounds, pair).error
        return 2 * error < comparing.precision * sqrt(comparing.sessions_least)

    def judge(rounds: Sequence[Round], seconds: float) -> bool:
        if len(rounds) < comparing.pairs:
            return False
        return seconds > part or all(precise(rounds, pair) for pair in pairs)

    return judge


def _error(sessions: Sequence[Session], pair: Pair) -> float:
    """Twice the standard error of the ratio, from the errors within sessions."""
    errors = [session.ratio(pair).error for session in sessions]
    return 2 * sqrt(fmean(error**2 for error in errors) / len(errors))


def _budget(comparing: Comparing, pairs: Sequence[Pair]) -> float:
    """Seconds for all sessions of the sides that are compared."""
    return comparing.budget * len({name for pair in pairs for name in pair}) / 2
