"""Variants against their reference, timed in turns:
``python -m transformer_core.measure.turns.job``.

On a machine whose speed drifts, turns resolve small differences: two windows next to each other see
the same machine. What processes differ in by themselves (where their memory lies, say) shows
between sessions, each of which starts anew: see :mod:`transformer_core.measure.turns.session`.

A session that is complete is kept in a file of its own: a job that was killed goes on with the next
one, and so does one that is given more time (a larger ``budget``) than it had. A side that cannot
train gives the record its status, and no number.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import uuid4

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.results import Pair
from transformer_core.common.attempts import count_failure
from transformer_core.common.endings import program
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import write_sealed
from transformer_core.measure.turns.comparison import compare_pairs
from transformer_core.measure.turns.kept_sessions import leave_sessions
from transformer_core.measure.turns.sides import Side, start_side
from transformer_core.run.coordinator import COORDINATOR, POLL_SECONDS
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job_options import add_data, add_log_file
from transformer_core.run.launcher import lends_processes_only, spans_machines
from transformer_core.run.order import shard_manifests
from transformer_core.run.supervisor import end_on_request


def lend(sides: Sequence[Side], data: Path, folder: Path, output: Path, command: str) -> None:
    """On every host but the first: start its processes of the sides that span hosts, for one
    session after the other, until the first host has written the record ``output``."""
    began = time.time()

    def recorded() -> bool:
        return output.exists() and output.stat().st_mtime >= began

    while not recorded():
        children = {
            side.name: start_side(
                side, place, data, folder, folder / COORDINATOR, command, uuid4().hex
            )
            for place, side in enumerate(sides)
            if spans_machines(side.spec)
        }
        # For the next session they wait at the meeting point, which may be never.
        while not recorded() and any(child.poll() is None for child in children.values()):
            time.sleep(POLL_SECONDS)
        for child in children.values():
            child.kill()
            child.wait()


def read_side(file: Path) -> Side:
    """The side of a run spec, under the name of its variant."""
    spec = read_record(file, RunSpec)
    return Side(spec.variant, spec)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.measure.turns.job",
        description="Time variants against their reference, in turns.",
    )
    parser.add_argument("--reference", type=Path, required=True, help="its spec.json")
    parser.add_argument(
        "--variant", type=Path, required=True, nargs="+", help="spec.json of one or several"
    )
    parser.add_argument("--comparing", required=True, help="comparison of the study, as JSON")
    add_data(parser)
    parser.add_argument(
        "--pairs",
        nargs="+",
        metavar="VARIANT/REFERENCE",
        help="comparisons of two of them (default: each variant with the reference)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, nargs="+", help="file of each comparison's record"
    )
    parser.add_argument(
        "--target", type=Path, help="what is asked for to make the records again (default: OUTPUT)"
    )
    parser.add_argument(
        "--sessions", type=Path, help="folder of sessions (default: OUTPUT without ending)"
    )
    parser.add_argument(
        "--code", default="", help="what the sources say: sessions of others do not count"
    )
    add_log_file(parser)
    return parser


def pairs_of(asked: Sequence[str] | None, names: Sequence[str]) -> list[Pair]:
    """The comparisons of a command line, each of two of ``names``; ValueError for one that is not.

    Without any, each name with the first."""
    reference, *variants = names
    pairs: list[Pair] = []
    for text in asked or [f"{variant}/{reference}" for variant in variants]:
        one, _, two = text.partition("/")
        if {one, two} - {*names}:
            raise ValueError(f"--pairs {text}: VARIANT/REFERENCE of {', '.join(names)}")
        pairs.append(Pair(one, two))
    return pairs


@program
def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    outputs: list[Path] = arguments.output
    files = [arguments.reference, *arguments.variant]
    sides = [read_side(file) for file in files]
    file_of = dict(zip((side.name for side in sides), files, strict=True))
    try:
        pairs = pairs_of(arguments.pairs, list(file_of))
    except ValueError as error:
        parser.error(str(error))
    if len(pairs) != len(outputs):
        parser.error("--output: as many files as comparisons")
    log_to(arguments.log_file)
    end_on_request()
    folder: Path = arguments.sessions or outputs[0].with_suffix("")
    comparing = Comparing.model_validate_json(arguments.comparing)
    command = reproducing_command(arguments.target or outputs[0])
    if lends_processes_only():
        lend(sides, arguments.data, folder, outputs[-1], command)
        return
    with exclusive(folder):
        again = partial(count_failure, folder.with_suffix(""))
        runs = compare_pairs(
            sides, pairs, comparing, arguments.data, folder, command, arguments.code, again
        )
        for pair, output in zip(pairs, outputs, strict=True):
            inputs = [*(file_of[name] for name in pair), *shard_manifests(arguments.data)]
            write_sealed(output, runs[pair].model_dump_json(indent=1) + "\n", inputs)
        leave_sessions(folder, comparing)


if __name__ == "__main__":
    sys.exit(main())
