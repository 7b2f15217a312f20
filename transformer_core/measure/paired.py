"""A variant against its reference, timed in turns: ``python -m transformer_core.measure.paired``.

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
    sessions: Sequence[Session], reference: str, variant: str, comparing: Comparing
) -> Stopped | None:
    """Why no further session is needed; None if one is.

    Only the error within the sessions decides, never how far sessions are apart: to stop where two
    happen to agree would make all intervals too narrow.
    """
    if len(sessions) < comparing.sessions_least:
        return None
    if len(sessions) >= comparing.sessions_most:
        return "sessions"
    errors = [session_ratio(session.rounds, reference, variant).error for session in sessions]
    if 2 * sqrt(fmean(error**2 for error in errors) / len(errors)) < comparing.precision:
        return "precision"
    spent = [session.seconds for session in sessions]
    if sum(spent) + fmean(spent) > comparing.budget:
        return "budget"
    return None


def precise(rounds: Sequence[Round], reference: str, variant: str, comparing: Comparing) -> bool:
    """Whether a session, with all others like it, makes the comparison precise enough."""
    error = session_ratio(rounds, reference, variant).error
    return 2 * error < comparing.precision * sqrt(comparing.sessions_least)


def enough(reference: str, variant: str, comparing: Comparing) -> Enough:
    """When a session has its part of the precision, or of the budget."""
    part = comparing.budget / comparing.sessions_least

    def judge(rounds: Sequence[Round], seconds: float) -> bool:
        if len(rounds) < comparing.pairs:
            return False
        return seconds > part or precise(rounds, reference, variant, comparing)

    return judge


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
    sides: tuple[Side, Side],
    comparing: Comparing,
    data: Path,
    output: Path,
    command: str,
) -> PairedRun:
    """All sessions of the second side against the first, below ``output`` without its ending."""
    started = datetime.now(UTC)
    reference, variant = (side.name for side in sides)
    folder = output.with_suffix("")
    judge = enough(reference, variant, comparing)
    lines = Lines(f"{variant} against {reference}")
    kept = Kept(folder, sides, comparing)
    done = list(kept.read())
    if done:
        log.info("%s: going on after %d sessions", lines.name, len(done))
    stopped: Stopped | None = None
    ended: SessionEndedError | None = None
    several_hosts = any(spans_machines(side.spec) for side in sides)
    with Desk(folder / DESK, several_hosts) as desk:
        sessions = Sessions(sides, comparing, data, folder, desk, command, started, lines)
        while not (stopped := stop(done, reference, variant, comparing)):
            lines.session = len(done) + 1
            try:
                session = sessions.run(lines.session, judge)
            except SessionEndedError as error:
                ended = error
                log.info("%s: %s", lines.name, error)
                break
            kept.add(session)
            done.append(session)
            ratio = session_ratio(session.rounds, reference, variant)
            log.info(
                "%s, session %d: %.2f s, log ratio %+.4f +- %.4f",
                *(lines.name, session.number, session.seconds, ratio.estimate, 2 * ratio.error),
            )
    return PairedRun(
        reference=reference,
        variant=variant,
        status=ended.status if ended else "ok",
        reason=ended.reason if ended else None,
        traceback=ended.traceback if ended else None,
        ended_by=ended.side if ended else None,
        sessions=[] if ended else done,
        stopped=stopped,
        seconds=sum(session.seconds for session in done),
        provenance=sessions.provenance or _provenance(sides, command, started),
    )


def lend(sides: Sequence[Side], data: Path, output: Path) -> None:
    """On every host but the first: start its processes of the sides that span hosts, for one
    session after the other, until the first host has written the record."""
    began, folder = time.time(), output.with_suffix("")

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
    parser.add_argument("--variant", type=Path, required=True, help="its spec.json")
    parser.add_argument("--comparing", required=True, help="comparison of the study, as JSON")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--output", type=Path, required=True, help="file of the record")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    log_to(arguments.log_file)
    end_on_request()
    output: Path = arguments.output
    sides = read_side(arguments.reference), read_side(arguments.variant)
    comparing = Comparing.model_validate_json(arguments.comparing)
    if lends_processes_only():
        lend(sides, arguments.data, output)
        return
    with exclusive(output.with_suffix("")):
        run = compare(sides, comparing, arguments.data, output, reproducing_command(output))
        write_text(output, run.model_dump_json(indent=1) + "\n")
    shutil.rmtree(output.with_suffix(""), ignore_errors=True)


if __name__ == "__main__":
    main()
