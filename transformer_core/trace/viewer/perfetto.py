"""``python -m transformer_core.trace perfetto FILE… --output ALL.json.gz``: one file of all
ranks for ui.perfetto.dev."""

import argparse
import gzip
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ConfigError
from transformer_core.common.files import atomic_path
from transformer_core.trace.arguments import (
    add_window,
    refuse_overwriting,
    traces_of,
    window,
)
from transformer_core.trace.events.arrow_arrays import SCHEMA, events_of
from transformer_core.trace.events.event_table import Events
from transformer_core.trace.events.rows import Rows, rows_of
from transformer_core.trace.joining.reading import read_files
from transformer_core.trace.readers.trace_kind import unusable
from transformer_core.trace.viewer.clock_offsets import Offset, clock_offsets
from transformer_core.trace.viewer.trace_events import Clock, Event, events_of_rank


def read_events(paths: Sequence[Path], cache: Path | None = None) -> Events:
    """The event table of traces, or of one events.parquet. Raises TraceError for anything else."""
    if len(paths) > 1 or paths[0].suffix != ".parquet":
        return read_files(paths, cache=cache).events
    path = paths[0]
    try:
        return events_of(pq.read_table(path).cast(SCHEMA))
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise unusable(
            path, f"is no event table ({reason})", "make it again with --events"
        ) from None


def events(table: Events | pa.Table) -> tuple[Iterator[Event], list[Offset]]:
    """All ranks of an event table on the clock of the first, and what was added to the others."""
    rows = rows_of(table)
    offsets = clock_offsets(rows.work)
    moved = {offset.rank: offset.nanoseconds for offset in offsets}
    parts = [
        (rank, _shifted(rows.where(rows["rank"] == rank), moved.get(rank, 0)))
        for rank in np.unique(rows["rank"]).tolist()
    ]
    clock = Clock(min((int(part["t0_ns"].min()) for _, part in parts), default=0))
    return (event for rank, part in parts for event in events_of_rank(rank, part, clock)), offsets


def _shifted(rows: Rows, nanoseconds: int) -> Rows:
    if not nanoseconds:
        return rows
    moved = {name: rows.columns[name] + nanoseconds for name in ("t0_ns", "t1_ns")}
    return rows.replaced(**moved)


def write(path: Path, table: Events | pa.Table) -> list[Offset]:
    """The file, whole or not at all; compressed if its name ends in .gz."""
    found, offsets = events(table)
    encode = msgspec.json.Encoder().encode
    with atomic_path(path) as temporary, ExitStack() as opened:
        stream: BinaryIO = opened.enter_context(temporary.open("wb"))
        if path.suffix == ".gz":
            # Without name and time: the same file for the same events.
            packed = gzip.GzipFile("", "wb", compresslevel=5, fileobj=stream, mtime=0)
            stream = cast(BinaryIO, opened.enter_context(packed))
        stream.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(found):
            stream.write((b",\n" if number else b"") + encode(event))
        stream.write(b"\n]}\n")
    return offsets


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.trace perfetto",
        description="One file for ui.perfetto.dev of the traces of all ranks, or of an "
        "events.parquet: steps, phases, layers, streams, classes of operators, memory and links, "
        "with the clocks of the ranks set right by their collectives.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, help="for example all.json.gz")
    add_window(parser)
    parser.add_argument("--cache", type=Path, help="folder to keep the events of traces in")
    options = parser.parse_args(arguments)
    stretch = window(parser, options)
    try:
        options.files = traces_of(options.files)
        refuse_overwriting([options.output], options.files)
        table = read_events(options.files, options.cache)
        try:
            offsets = write(options.output, stretch.of(table))
        except OSError as error:
            reason = f"cannot be written ({error.strerror or error})"
            raise unusable(options.output, reason, "name another file, or make room") from None
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    for offset in offsets:
        if offset.nanoseconds:
            print(
                f"rank {offset.rank}: clock set by {offset.nanoseconds / 1e6:+,.3f} ms, after "
                f"{offset.matched:,} collectives"
            )
    print(f"{options.output}: open it in https://ui.perfetto.dev")
    return 0
