"""Breakdown of profiles: ``python -m transformer_core.trace FILE…``; two of them side by side:
``… diff A B``; all ranks in one file for a viewer: ``… perfetto FILE… --output ALL.json.gz``."""

import argparse
import gc
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from schemas.errors import ConfigError
from schemas.results.profiles import Breakdown
from transformer_core.common.endings import program
from transformer_core.common.seals import write_sealed
from transformer_core.trace.arguments import (
    add_window,
    count,
    pattern,
    refuse_overwriting,
    traces_of,
    window,
)
from transformer_core.trace.breakdown.devices import KERNELS_SHOWN, KernelChoice
from transformer_core.trace.breakdown.profile import (
    Choice,
    breakdown_of_files,
    failed_breakdown,
    write_events,
)
from transformer_core.trace.events.event_table import Events, Window
from transformer_core.trace.events.process import unusable


def summary(breakdown: Breakdown) -> str:
    """The main numbers as lines of text."""
    lines = [f"{breakdown.name}: {breakdown.status}"]
    if breakdown.reason:
        lines.append(breakdown.reason)
    for device in breakdown.devices:
        whole = device.profiled
        shares = [("compute", whole.compute_ns)]
        shares += [("exposed communication", whole.exposed_communication_ns)]
        shares += [("exposed copies", whole.exposed_copies_ns or 0)]
        shares += [("exposed graphs", whole.exposed_graphs_ns or 0), ("idle", whole.idle_ns)]
        steps = f"{len(device.steps)} steps" if device.steps else "the whole trace"
        lines.append(
            f"rank {device.rank} on {device.device}: {steps}, {whole.window_ns / 1e6:,.3f} ms"
        )
        lines += [
            f"  {name:<24}{time / 1e6:>14,.3f} ms {time / whole.window_ns:>7.1%}"
            for name, time in shares
            if time and whole.window_ns
        ]
        lines += [
            f"    {activity.kind + ' ' + activity.name:<28}{activity.time_ns / 1e6:>12,.3f} ms "
            f"{activity.share:>7.1%} of device time"
            for activity in device.activities[:5]
            if activity.share is not None
        ]
    return "\n".join([*lines, *(f"note: {note}" for note in breakdown.notes)])


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.trace",
        description="Read traces of Nsight Systems (SQLite exports) or torch.profiler (Kineto "
        "JSON, also .gz), one per rank, and break down what the devices did.",
        epilog="Two profiles side by side: diff A B. All ranks in one file for ui.perfetto.dev: "
        "perfetto FILE... --output ALL.json.gz. Each has a --help of its own.",
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="traces by rank, or a folder"
    )
    parser.add_argument(
        "--keep-status",
        action="store_true",
        help="where the files cannot be used, write a breakdown that says so, and exit with 0",
    )
    parser.add_argument(
        "--top",
        type=count,
        default=KERNELS_SHOWN,
        help="kernels to list, and twice as many shapes of operators (default: %(default)s)",
    )
    parser.add_argument(
        "--filter",
        type=pattern,
        default="",
        metavar="REGEX",
        help="list kernels whose names hold a match",
    )
    add_window(parser)
    parser.add_argument(
        "--cache", type=Path, help="folder to keep the events of traces in, by what is in the files"
    )
    parser.add_argument("--name", default="trace", help="name in the result (default: %(default)s)")
    parser.add_argument(
        "--events", type=Path, help="event table to write, for example events.parquet"
    )
    parser.add_argument(
        "--output", type=Path, help="breakdown to write, for example breakdown.json"
    )
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    # What only some commands need is imported by those: reading a trace should not take the time.
    if arguments[:1] == ["diff"]:
        from transformer_core.trace import compare as compare_profiles

        return compare_profiles.main(arguments[1:])
    if arguments[:1] == ["perfetto"]:
        from transformer_core.trace import perfetto

        return perfetto.main(arguments[1:])
    parser = _arguments()
    options = parser.parse_args(arguments)
    if meant := _command(options.files[0]):
        parser.error(f"{options.files[0]} is no file; is the command {meant} meant?")
    stretch = window(parser, options)
    try:
        options.files = traces_of(options.files)
        outputs = (options.output, options.events)
        refuse_overwriting(outputs, options.files)
        breakdown, rows = _read(options, stretch)
        write_results(breakdown, rows, options.output, options.events)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(summary(breakdown))
    return 0 if breakdown.status == "ok" or options.keep_status else 1


def _command(path: Path) -> str | None:
    """The command that a mistyped word may stand for; null for a file."""
    found = get_close_matches(str(path), ("diff", "perfetto"), n=1)
    return None if path.exists() or not found else found[0]


def _read(options: argparse.Namespace, stretch: Window) -> tuple[Breakdown, Events]:
    try:
        choice = Choice(
            kernels=KernelChoice(options.top, options.filter),
            window=stretch,
            cache=options.cache,
        )
        return breakdown_of_files(options.files, options.name, choice)
    except ConfigError as error:
        if not options.keep_status:
            raise
        return failed_breakdown(options.name, str(error))


def write_results(
    breakdown: Breakdown, events: Events, output: Path | None, table: Path | None
) -> None:
    """Write a breakdown, and its event table, where a path is given for it."""
    path = table
    try:
        if table:
            write_events(table, events)
        path = output
        if output:
            write_sealed(output, breakdown.model_dump_json(indent=2) + "\n")
    except OSError as error:
        assert path
        reason = f"cannot be written ({error.strerror or error})"
        raise unusable(
            path, reason, "name another file, or make room and give permission"
        ) from None


if __name__ == "__main__":
    gc.freeze()  # modules stay: the collector need not look through them again and again
    sys.exit(main())
