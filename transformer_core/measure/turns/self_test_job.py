"""The protocol of comparisons, tested: ``python -m transformer_core.measure.self_test``.

One run spec takes turns under several names: as it is, as it is once more, and with steps that are
made longer on purpose. What must come out is known, and
:mod:`transformer_core.analysis.self_test` says whether it does.

Several sides in one session give a comparison of each kind at the price of fewer processes. Each
comparison has as many sessions as those of a study have at least. A session that is complete is
kept: a job that was killed goes on with the next one.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.measure import Comparing, SelfTest
from schemas.results import Session
from schemas.results.self_test import SelfTestRun
from schemas.study import RunSpec
from transformer_core.data.files import write_text
from transformer_core.measure.launch import spans_machines
from transformer_core.measure.paired import Kept, Lines, end_on_request, enough
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import exclusive, reproducing_command
from transformer_core.measure.session import DESK, SessionEndedError, Sessions, Side
from transformer_core.measure.turns import Desk

REFERENCE = "reference"
EQUAL = "equal"


def sides_of(file: Path, planted: Sequence[float]) -> list[Side]:
    """The reference, the same once more, and those that are slowed down."""
    spec = RunSpec.model_validate_json(file.read_text())
    slowed = [Side(f"slowed_{round(1000 * share)}", file, spec, share) for share in planted]
    return [Side(REFERENCE, file, spec, 0.0), Side(EQUAL, file, spec, 0.0), *slowed]


def measure(
    sides: Sequence[Side],
    comparing: Comparing,
    count: int,
    data: Path,
    folder: Path,
    command: str,
) -> SelfTestRun:
    """``count`` sessions; those that an earlier job finished are kept in ``folder``."""
    started = datetime.now(UTC)
    kept = Kept(folder, sides, comparing)
    done: list[Session] = [session for session, _ in zip(kept.read(), range(count), strict=False)]
    if done:
        log.info("self-test: going on after %d sessions", len(done))
    judge = enough(REFERENCE, [side.name for side in sides[1:]], comparing)
    lines = Lines("self-test")
    began, first = time.monotonic(), len(done)
    with Desk(folder / DESK, spans_machines(sides[0].spec)) as desk:
        sessions = Sessions(sides, comparing, data, folder, desk, command, started, lines)
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
    return SelfTestRun(
        reference=REFERENCE,
        sessions_each=comparing.sessions_least,
        comparing=comparing,
        sessions=done,
        seconds=sum(session.seconds for session in done),
        provenance=sessions.provenance.get(REFERENCE) or collect(sides[0].spec, command, started),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of any variant")
    parser.add_argument("--self-test", required=True, help="self_test of the study, as JSON")
    parser.add_argument("--comparing", required=True, help="comparison of the study, as JSON")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--command-target", type=Path, required=True, help="file that is asked for")
    parser.add_argument("--output", type=Path, required=True, help="file of all sessions")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    log_to(arguments.log_file)
    end_on_request()
    asked = SelfTest.model_validate_json(arguments.self_test)
    comparing = Comparing.model_validate_json(arguments.comparing)
    output: Path = arguments.output
    folder = output.with_suffix("")
    count = asked.comparisons * comparing.sessions_least
    command = reproducing_command(arguments.command_target)
    with exclusive(folder):
        try:
            run = measure(
                sides_of(arguments.spec, asked.planted),
                comparing,
                count,
                arguments.data,
                folder,
                command,
            )
        except SessionEndedError as error:
            print(f"{arguments.spec}: {error}\n{error.traceback or ''}", file=sys.stderr)
            sys.exit(1)
        write_text(output, run.model_dump_json() + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
