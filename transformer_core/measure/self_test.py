"""A test of the comparison protocol.

One run spec takes turns under several names: twice unchanged, and with steps deliberately made
longer. The correct result is known, and :mod:`transformer_core.decide.self_test_report` checks it.

With several sides in one session, every kind of comparison takes fewer processes. Each comparison
has the minimum number of sessions of the study's comparisons. Complete sessions are kept: a job
that was killed or has failed resumes with the next one.
"""

import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from schemas.config.measurement import Comparing, SelfTest
from schemas.config.run_spec import RunSpec
from schemas.results import Pair
from schemas.results.comparisons import SelfTestRun
from transformer_core.common.digests import write_result
from transformer_core.common.endings import reproducing_command
from transformer_core.common.folder_locks import workplace
from transformer_core.common.progress import SessionLines, log
from transformer_core.common.records import read_record
from transformer_core.machine.hardware import read_hardware
from transformer_core.machine.provenance import collect
from transformer_core.measure.comparison import Kept, enough
from transformer_core.measure.sessions import SessionEndedError, Sessions, Side, for_devices
from transformer_core.run.order import TrainingJob
from transformer_core.run.supervisor import end_on_request

REFERENCE = "reference"


def sides_of(spec: RunSpec, planted: Sequence[float]) -> list[Side]:
    """The reference, and one side for each planted slow-down."""
    sides = [
        Side(f"side_{number}_slowed_by_{share:g}", spec, share)
        for number, share in enumerate(planted, 1)
    ]
    return [Side(REFERENCE, spec, 0.0), *sides]


def measure(
    sides: Sequence[Side],
    comparing: Comparing,
    count: int,
    data: Path,
    kept: Kept,
    command: str,
) -> SelfTestRun:
    """Runs ``count`` sessions, including those of earlier jobs that were ``kept``."""
    done = list(islice(kept.read(), count))
    if done:
        log.info("self-test: resuming after %d sessions", len(done))
    judge = enough([Pair(side.name, REFERENCE) for side in sides[1:]], comparing)
    lines = SessionLines("self-test")
    began, first = time.monotonic(), len(done)
    with Sessions.opened(sides, comparing, data, kept.folder, command, lines) as sessions:
        while len(done) < count:
            lines.session = len(done) + 1
            session = sessions.run(lines.session, judge)
            kept.add(session)
            done.append(session)
            left = (count - len(done)) * (time.monotonic() - began) / (len(done) - first)
            log.info(
                "self-test: session %d of %d, %.1f s, %.0f min left",
                *(len(done), count, session.seconds, left / 60),
            )
    provenance = sessions.provenance.get(REFERENCE)
    return SelfTestRun(
        reference=REFERENCE,
        sessions_each=comparing.sessions_least,
        comparing=comparing,
        sessions=done,
        seconds=sum(session.seconds for session in done),
        provenance=provenance or collect(sides[0].spec, command, sessions.started),
    )


class SelfTestJob(TrainingJob):
    """Compares a variant with itself, unchanged and deliberately slowed down; ``output`` is the file
    of all sessions."""

    kind = "self_test"

    self_test: SelfTest
    """self_test of the study."""
    comparing: Comparing
    """comparison of the study."""
    target: Path
    """The requested file, for the command that reproduces it."""
    code: str = ""
    """Digest of the sources: sessions of different code do not count."""

    def run(self, log_file: Path | None) -> int | None:
        end_on_request()
        sides = sides_of(read_record(self.spec, RunSpec), self.self_test.planted)
        comparing = for_devices(self.comparing, [sides[0].spec])
        folder, command = self.output.with_suffix(""), reproducing_command(self.target)
        count = self.self_test.comparisons * comparing.sessions_least
        here = read_hardware()
        kept = Kept(folder, sides, comparing, f"{self.code}, {here.cpu}, {here.devices}")
        try:
            with workplace(folder):
                run = measure(sides, comparing, count, self.data, kept, command)
                write_result(self.output, run.model_dump_json() + "\n")
        except SessionEndedError as error:
            print(f"{self.spec}: {error}\n{error.outcome.traceback or ''}", file=sys.stderr)
            return 1
        return None
