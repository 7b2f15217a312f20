"""Breakdown of profiles: ``python -m transformer_core.profiling FILE…``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from schemas.errors import ConfigError, from_validation
from schemas.results import Breakdown, Capture
from transformer_core.data.files import write_text
from transformer_core.profiling.reading import (
    breakdown_of_capture,
    breakdown_of_files,
    write_events,
)
from transformer_core.profiling.source import unusable


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
        prog="python -m transformer_core.profiling",
        description="Read traces of Nsight Systems (SQLite exports) or torch.profiler (Kineto "
        "JSON, also .gz), one per rank, and break down what the devices did.",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="traces, by rank")
    parser.add_argument("--capture", type=Path, help="capture.json of a variant, instead of files")
    parser.add_argument("--name", default="trace", help="name in the result (default: %(default)s)")
    parser.add_argument(
        "--events", type=Path, help="event table to write, for example events.parquet"
    )
    parser.add_argument(
        "--output", type=Path, help="breakdown to write, for example breakdown.json"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _arguments()
    options = parser.parse_args(arguments)
    if bool(options.files) == bool(options.capture):
        parser.error("give files, or --capture with a capture.json")
    try:
        if options.capture:
            breakdown, rows = breakdown_of_capture(
                _read_capture(options.capture), options.capture.parent
            )
        else:
            breakdown, rows = breakdown_of_files(options.files, options.name)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    if options.events:
        write_events(options.events, rows)
    if options.output:
        write_text(options.output, breakdown.model_dump_json(indent=2) + "\n")
    print(summary(breakdown))
    return 0


def _read_capture(path: Path) -> Capture:
    try:
        return Capture.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise unusable(path, reason, f"make it again: snakemake --cores all {path}") from None
    except ValidationError as error:
        raise from_validation(error, Capture, str(path)) from None


if __name__ == "__main__":
    sys.exit(main())
