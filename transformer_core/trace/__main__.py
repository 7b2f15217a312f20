"""The program ``trace``: where the time of a training goes, from the traces of a profiler.

``trace FILE...`` prints a summary of all ranks, ``trace diff A B`` compares two recordings, ``trace
perfetto FILE... --output ALL.json.gz`` writes all ranks to one file for a viewer, and ``trace memory
FILE... --output MEMORY.svg`` draws the allocated memory. Without an installation, run
``python -m transformer_core.trace``.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from schemas.errors import ConfigError
from schemas.results.profiles import Breakdown
from transformer_core.common.digests import write_result
from transformer_core.common.endings import in_words, reader_left
from transformer_core.trace.arguments import (
    add_window,
    count,
    need,
    pattern,
    refuse_overwriting,
    window,
    writing,
)
from transformer_core.trace.breakdown.devices import KERNELS_SHOWN, Choice
from transformer_core.trace.breakdown.summary import (
    breakdown_of_files,
    read_roofline,
    with_ceilings,
    with_longest,
)
from transformer_core.trace.readers.files import Reading, traces_of
from transformer_core.trace.terminal import page, plain

_ALL_KERNELS = 10_000
_COMMANDS = {
    "diff": "transformer_core.trace.compare",
    "memory": "transformer_core.trace.memory",
    "perfetto": "transformer_core.trace.perfetto",
}
"""The modules of the subcommands."""
_HELP = """\
Read traces of torch.profiler (.json, .json.gz) or Nsight Systems (.sqlite), one file
for each rank of a training or a folder of them, and print where the time of a step
goes: the partition of wall time, phases, collectives, kernels, and ranks that others
wait for. Traces are never changed; --output and --events write the files that they name, and
the digests of these beside them (.digests.json)."""
_EXAMPLES = """\
examples:
  trace traces/                              a folder with the traces of all ranks
  trace rank0.json.gz --top 30 --filter gemm the 30 longest kernels with gemm in their names
  trace rank0.json.gz --json > numbers.json  all numbers
  trace diff before/ after/                  what changed, and by how much
  trace perfetto traces/ --output all.json.gz  all ranks in one file for ui.perfetto.dev
  trace memory traces/ --output memory.svg   allocated memory over time

how to record:
  with torch.profiler.profile(record_shapes=True) as p: ...; p.export_chrome_trace("rank0.json.gz")
  nsys profile --trace=cuda,nvtx python train.py; nsys export --type=sqlite report1.nsys-rep

exit status: 0 on success, 1 if the files cannot be used, 2 for a wrong command.
For the subcommands, see trace diff --help, trace memory --help and trace perfetto --help."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trace",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="traces, a folder of traces, or an events.parquet written earlier",
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument(
        "--top",
        type=count,
        default=KERNELS_SHOWN,
        metavar="N",
        help="rows of each list: kernels, ranks, kinds of work (default: %(default)s)",
    )
    shown.add_argument(
        "--filter",
        type=pattern,
        default="",
        metavar="REGEX",
        help="list only kernels whose names contain a match; shares remain those of all kernels",
    )
    add_window(shown)
    shown.add_argument(
        "--roofline",
        type=Path,
        metavar="FILE",
        help="show each kernel's share of these ceilings: the roofline.json of the machine",
    )
    written = parser.add_argument_group("what is written")
    written.add_argument("--json", action="store_true", help="print all numbers as JSON instead")
    written.add_argument(
        "--output", type=Path, metavar="FILE", help="write all numbers to a file; - prints them"
    )
    written.add_argument(
        "--events", type=Path, metavar="FILE", help="write the event table to an events.parquet"
    )
    written.add_argument(
        "--name", default="trace", help="name in the result (default: %(default)s)"
    )
    parser.add_argument(
        "--keep-status",
        action="store_true",
        help="if the files cannot be used, write a failed breakdown and exit with 0",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = _run(arguments)
        return 1 if reader_left() else status
    except (ConfigError, OSError) as error:
        if not reader_left():
            print(plain(in_words(error)), file=sys.stderr)
        return 1


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] and arguments[0] in _COMMANDS:
        # Other commands need further imports, which would delay reading a trace.
        return int(import_module(_COMMANDS[arguments[0]]).main(arguments[1:]))
    parser = _arguments()
    options = parser.parse_args(arguments)
    need(parser, FILE=options.files)
    first = options.files[0]
    if not first.exists() and (meant := get_close_matches(str(first), _COMMANDS, n=1)):
        parser.error(f"{first} is not a file; did you mean the command {meant[0]}?")
    stretch = window(parser, options)
    if options.output == Path("-"):
        options.json, options.output = True, None
    inputs = [*traces_of(options.files), options.roofline]
    refuse_overwriting((options.output, options.events), inputs)
    roofline = options.roofline and read_roofline(options.roofline)
    choice = Choice(_ALL_KERNELS, options.filter, 2 * options.top, stretch)
    try:
        breakdown, reading = breakdown_of_files(options.files, options.name, choice)
    except ConfigError as error:
        if not options.keep_status:
            raise
        breakdown = Breakdown(name=options.name, status="failed", reason=str(error))
        reading = Reading()
    breakdown = with_ceilings(breakdown, roofline) if roofline else breakdown
    listed = with_longest(breakdown, options.top)
    write_results(listed, reading, options.output, options.events)
    failed = breakdown.status != "ok"
    if options.json:
        print(listed.model_dump_json(indent=2, ensure_ascii=True))
    if failed or not options.json:
        stream = sys.stderr if failed else sys.stdout
        print(page(breakdown, options.top), file=stream)
    return 1 if failed and not options.keep_status else 0


def write_results(
    breakdown: Breakdown, reading: Reading, output: Path | None, table: Path | None
) -> None:
    """Writes a breakdown and the events that it is of, each if it has a path."""
    if table:
        from transformer_core.trace.events.arrow import About, write_events  # slow to import

        about = About(format=reading.format, version=reading.version, notes=reading.notes)
        with writing(table):
            write_events(table, reading.events, about)
    if output:
        with writing(output):
            write_result(output, breakdown.model_dump_json(indent=2) + "\n")


if __name__ == "__main__":
    gc.freeze()  # spares the collector from scanning modules again and again
    sys.exit(main())
