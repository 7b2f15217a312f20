"""Command-line arguments, checked, and the files that commands write."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformer_core.trace.events.clocks import Window, behind, length_ms, unaligned
from transformer_core.trace.events.event_table import Events
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.readers.files import read_files, traces_of
from transformer_core.trace.terminal import plain

_LONGEST_MS = 1e12  # nanoseconds of it fit into 64 bits


def count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
    return text


def percent(text: str) -> float:
    return _number(text, 0, sys.float_info.max, "a number of at least 0")


def milliseconds(text: str) -> float:
    return _number(text, -_LONGEST_MS, _LONGEST_MS, "a number of milliseconds")


def _number(text: str, least: float, most: float, told: str) -> float:
    try:
        if least <= float(text) <= most:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not {told}")


def add_window(parser: argparse._ActionsContainer) -> None:
    """Adds the options of a window, which :func:`window` reads."""
    for word, field, told in (("--from", "begin", "earlier"), ("--to", "end", "later")):
        told = f"leave out {told} events, in milliseconds after the first event"
        parser.add_argument(word, dest=field, type=milliseconds, metavar="MS", help=told)


def window(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Window:
    """The window in the options; exits with an error if it is empty."""
    found = Window(options.begin, options.end)
    if found.end_ms is not None and found.end_ms <= (found.begin_ms or 0):
        parser.error("--to must be later than --from")
    return found


def need(parser: argparse.ArgumentParser, **arguments: object) -> None:
    """Exits with an error if an argument is missing. Checked after parsing: argparse itself would
    name what is missing before an unknown option."""
    if missing := ", ".join(name for name, given in arguments.items() if not given):
        parser.error(f"the following arguments are required: {missing}")


def refuse_overwriting(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Raises TraceError if a file to write is also read, or written twice."""
    taken = {path.resolve() for path in inputs if path}
    for path in outputs:
        if path and path.resolve() in taken:
            reason = "would be overwritten: the same command reads or writes it"
            raise TraceError(path, reason, "name another file")
        if path:
            taken.add(path.resolve())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns errors of writing ``path`` into TraceError."""
    try:
        yield
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise TraceError(
            path, reason, "name another file, or free space and allow writing"
        ) from None


def read_and_output(
    name: str, description: str, example: str, arguments: Sequence[str]
) -> tuple[list[Path], Events, Path]:
    """Files, events on one clock that begins with them, and output of a command that writes a file."""
    parser = argparse.ArgumentParser(prog=f"trace {name}", description=description)
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="traces, or one events.parquet"
    )
    parser.add_argument("--output", type=Path, help=f"for example {example}; - prints it")
    add_window(parser)
    options = parser.parse_args(arguments)
    need(parser, **{"FILE": options.files, "--output": options.output})
    stretch = window(parser, options)
    refuse_overwriting([options.output], traces_of(options.files))
    reading = read_files(options.files)
    events = reading.events
    later, offsets = behind(events)
    later -= (events.columns["t0_ns"] + later).min(initial=2**63 - 1)
    for name in ("t0_ns", "t1_ns"):
        events.columns.replace(name, events.columns[name] + later)
    moved = [
        f"rank {offset.rank}: clock moved by {offset.nanoseconds / 1e6:+,.3f} ms, to fit "
        f"{offset.matched:,} collectives"
        for offset in offsets
        if offset.nanoseconds
    ]
    for note in filter(None, (*reading.notes, *moved, unaligned(offsets))):
        print(plain(f"note: {note}"), file=sys.stderr)
    inside = stretch.of(events)
    if len(events) and not len(inside):
        remedy = f"choose another window: the trace is {length_ms(events):,.3f} ms long"
        raise TraceError(options.files[0], "has no event between --from and --to", remedy)
    return options.files, inside, options.output
