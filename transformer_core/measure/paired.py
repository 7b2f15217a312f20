"""Variants against their reference, timed in turns: ``python -m transformer_core.measure.paired``.

On a machine whose speed drifts, turns resolve small differences: two windows next to each other see
the same machine. What processes differ in by themselves (where their memory lies, say) shows
between sessions, each of which starts anew: see :mod:`transformer_core.measure.session`.

A session that is complete is kept in a file of its own until all are: a job that was killed goes on
with the next one. A side that cannot train gives the record its status, and no number.
"""

import argparse
import hashlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import ValidationError

from schemas.measure import Comparing
from schemas.results import PairedRun, Provenance, Round, Session
from schemas.study import RunSpec
from transformer_core.data.files import write_text
from transformer_core.measure.launch import lends_processes_only, spans_machines
from transformer_core.measure.pairs import session_ratio
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import exclusive, reproducing_command
from transformer_core.measure.session import (
    DESK,
    Enough,
    SessionEndedError,
    Sessions,
    Side,
    start_side,
)
from transformer_core.measure.turns import POLL_SECONDS, Desk

Stopped = Literal["precision", "sessions", "budget"]
LINE_SECONDS = 10.0


def stop(
    sessions: Sequence[Session], reference: str, variants: Sequence[str], comparing: Comparing
) -> Stopped | None:
    """Why no further session is needed; None if one is.

    Only the error within the sessions decides, never how far sessions are apart: to stop where two
    happen to agree would make all intervals too narrow.
    """
    if len(sessions) < comparing.sessions_least:
        return None
    if len(sessions) >= comparing.sessions_most:
        return "sessions"
    if all(_error(sessions, reference, name) < comparing.precision for name in variants):
        return "precision"
    spent = [session.seconds for session in sessions]
    if sum(spent) + fmean(spent) > _budget(comparing, variants):
        return "budget"
    return None


def enough(reference: str, variants: Sequence[str], comparing: Comparing) -> Enough:
    """When a session has its part of the precision, or of the budget."""
    part = _budget(comparing, variants) / comparing.sessions_least

    def precise(rounds: Sequence[Round], variant: str) -> bool:
        """Whether this session, with all others like it, would be precise enough."""
        error = session_ratio(rounds, reference, variant).error
        return 2 * error < comparing.precision * sqrt(comparing.sessions_least)

    def judge(rounds: Sequence[Round], seconds: float) -> bool:
        if len(rounds) < comparing.pairs:
            return False
        return seconds > part or all(precise(rounds, variant) for variant in variants)

    return judge


def _error(sessions: Sequence[Session], reference: str, variant: str) -> float:
    """Twice the standard error of the ratio, from the windows alone."""
    errors = [session_ratio(session.rounds, reference, variant).error for session in sessions]
    return 2 * sqrt(fmean(error**2 for error in errors) / len(errors))


def _budget(comparing: Comparing, variants: Sequence[str]) -> float:
    """Seconds for all sessions of ``variants`` and their reference."""
    return comparing.budget * (1 + len(variants)) / 2


class Kept:
    """The sessions of an unfinished comparison, a file each in ``folder``.

    ``key`` says what they are sessions of: files with another key are of another comparison.
    """

    def __init__(self, folder: Path, sides: Sequence[Side], comparing: Comparing) -> None:
        self.folder = folder
        named = [[side.name, side.spec.digest(), side.planted] for side in sides]
        text = json.dumps([named, comparing.canonical_json()])
        self.key = hashlib.sha256(text.encode()).hexdigest()

    def read(self) -> Iterator[Session]:
        """The sessions from the first on, as far as there is one after the other."""
        for number in range(1, sys.maxsize):
            try:
                kept = json.loads(self._path(number).read_text())
                if kept["key"] != self.key:
                    return
                yield Session.model_validate(kept["session"])
            except (OSError, ValueError, KeyError, TypeError, ValidationError):
                return

    def add(self, session: Session) -> None:
        """Keep a session."""
        kept = {"key": self.key, "session": session.model_dump(mode="json")}
        write_text(self._path(session.number), json.dumps(kept))

    def _path(self, number: int) -> Path:
        return self.folder / f"session-{number}.json"


class Lines:
    """Progress as lines of the log, not too many of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session = 1
        self.said = -LINE_SECONDS

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self.said >= LINE_SECONDS:
            self.said = now
            log.info("%s, session %d: %s", self.name, self.session, text)


def compare(
    sides: Sequence[Side], comparing: Comparing, data: Path, folder: Path, command: str
) -> dict[str, PairedRun]:
    """All sessions of the sides against the first, below ``folder``; a record for each side.

    A variant that cannot train gets its status, and the others begin anew without it. Where the
    reference cannot, none of them can be compared.
    """
    started = datetime.now(UTC)
    reference, *variants = sides
    found: dict[str, PairedRun] = {}
    while variants:
        found |= _sessions([reference, *variants], comparing, data, folder, command, started)
        variants = [side for side in variants if side.name not in found]
    return found


def _sessions(
    sides: Sequence[Side],
    comparing: Comparing,
    data: Path,
    folder: Path,
    command: str,
    started: datetime,
) -> dict[str, PairedRun]:
    """The records of all sides but the first, or of the side that ended before the others."""
    reference, *variants = (side.name for side in sides)
    judge = enough(reference, variants, comparing)
    lines = Lines(f"{', '.join(variants)} against {reference}")
    kept = Kept(folder, sides, comparing)
    done = list(kept.read())
    if done:
        log.info("%s: going on after %d sessions", lines.name, len(done))
    stopped: Stopped | None = None
    ended: SessionEndedError | None = None
    several_hosts = any(spans_machines(side.spec) for side in sides)
    with Desk(folder / DESK, several_hosts) as desk:
        sessions = Sessions(sides, comparing, data, folder, desk, command, started, lines)
        while not (stopped := stop(done, reference, variants, comparing)):
            lines.session = len(done) + 1
            try:
                session = sessions.run(lines.session, judge)
            except SessionEndedError as error:
                ended = error
                log.info("%s: %s", lines.name, error)
                break
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
    provenance = sessions.provenance or _provenance(sides, command, started)
    if ended is not None and ended.side != reference:
        variants = [ended.side]
    return {
        name: PairedRun(
            reference=reference,
            variant=name,
            status=ended.status if ended else "ok",
            reason=ended.reason if ended else None,
            traceback=ended.traceback if ended else None,
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


def asked_for(run: PairedRun, command: str) -> PairedRun:
    """The record with the command that makes it again, and not the others of its job."""
    provenance = {
        side: found.model_copy(update={"command": command})
        for side, found in run.provenance.items()
    }
    return run.model_copy(update={"provenance": provenance})


def lend(sides: Sequence[Side], data: Path, folder: Path, output: Path) -> None:
    """On every host but the first: start its processes of the sides that span hosts, for one
    session after the other, until the first host has written the record ``output``."""
    began = time.time()

    def recorded() -> bool:
        return output.exists() and output.stat().st_mtime >= began

    while not recorded():
        children = {
            side.name: start_side(side, place, data, folder, folder / DESK)
            for place, side in enumerate(sides)
            if spans_machines(side.spec)
        }
        # For the next session they wait at the meeting point, which may be never.
        while not recorded() and any(child.poll() is None for child in children.values()):
            time.sleep(POLL_SECONDS)
        for child in children.values():
            child.kill()
            child.wait()


def _provenance(sides: Sequence[Side], command: str, started: datetime) -> dict[str, Provenance]:
    """As the workers would have told: this process imports torch for it."""
    return {side.name: collect(side.spec, command, started) for side in sides}


def read_side(file: Path) -> Side:
    """The side of a run spec, under the name of its variant."""
    spec = RunSpec.model_validate_json(file.read_text())
    return Side(spec.variant, file, spec)


def end_on_request() -> None:
    """Let SIGTERM end this process like an exception, so that nothing is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reference", type=Path, required=True, help="its spec.json")
    parser.add_argument(
        "--variant", type=Path, required=True, nargs="+", help="spec.json of one or several"
    )
    parser.add_argument("--comparing", required=True, help="comparison of the study, as JSON")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument(
        "--output", type=Path, required=True, nargs="+", help="file of the record of each variant"
    )
    parser.add_argument(
        "--target", type=Path, nargs="+", help="what is asked for instead of each OUTPUT"
    )
    parser.add_argument(
        "--sessions", type=Path, help="folder of unfinished work (default: OUTPUT without ending)"
    )
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    targets: list[Path] = arguments.target or arguments.output
    if not len(arguments.variant) == len(arguments.output) == len(targets):
        parser.error("--output, --target: as many files as variants")
    log_to(arguments.log_file)
    end_on_request()
    outputs: list[Path] = arguments.output
    folder: Path = arguments.sessions or outputs[0].with_suffix("")
    sides = [read_side(file) for file in (arguments.reference, *arguments.variant)]
    comparing = Comparing.model_validate_json(arguments.comparing)
    if lends_processes_only():
        lend(sides, arguments.data, folder, outputs[-1])
        return
    with exclusive(folder):
        runs = compare(sides, comparing, arguments.data, folder, reproducing_command(targets[0]))
        for side, output, target in zip(sides[1:], outputs, targets, strict=True):
            run = asked_for(runs[side.name], reproducing_command(target))
            write_text(output, run.model_dump_json(indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
