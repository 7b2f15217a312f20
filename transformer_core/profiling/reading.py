"""From files of a profiler to the event table and its breakdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ConfigError
from schemas.results import Breakdown, Capture
from transformer_core.data.files import atomic_path
from transformer_core.profiling import events
from transformer_core.profiling.breakdown import break_down
from transformer_core.profiling.kineto import read_kineto
from transformer_core.profiling.nsys import is_sqlite, read_nsys
from transformer_core.profiling.over_devices import summarise
from transformer_core.profiling.rows import table
from transformer_core.profiling.source import Source, unusable
from transformer_core.profiling.trace import ProcessTrace

NO_EVENTS = (
    "the trace holds no device event: either the capture range never began, or the program ran "
    "nothing on a device"
)


@dataclass(frozen=True)
class Reading:
    """The event table of some files, and what must be said of them."""

    table: pa.Table
    format: Literal["nsys", "kineto"]
    version: str | None
    notes: list[str]


def read_source(path: Path) -> Source:
    """One file, of whichever format it is; ConfigError if it cannot be used."""
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise unusable(
            path,
            "is a report in the format of Nsight Systems itself",
            f"export it: nsys export --type=sqlite {path}",
        )
    try:
        database = is_sqlite(path)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise unusable(path, reason, "check its path and permissions") from None
    return read_nsys(path) if database else read_kineto(path)


def read_files(paths: Sequence[Path], ranks: Sequence[int] | None = None) -> Reading:
    """The processes of all files in one table.

    Ranks are ``ranks`` (one for each file of one process), else those that the traces say, else
    the order of files and process ids. Raises ConfigError for a file that cannot be used, and for
    two processes of one rank.
    """
    sources = [read_source(path) for path in paths]
    found: list[tuple[Path, ProcessTrace]] = []
    for number, (path, source) in enumerate(zip(paths, sources, strict=True)):
        busy = [trace for trace in source.processes if len(trace.device)] or source.processes
        if ranks is not None and len(busy) == 1:
            busy[0].rank = ranks[number]
        found += [(path, trace) for trace in busy]
    notes = [note for source in sources for note in source.notes]
    if any(trace.rank is None for _, trace in found):
        for place, (_, trace) in enumerate(found):
            trace.rank = place
        if len(found) > 1:
            notes.append("The traces do not say their ranks: they are counted in order")
    seen: dict[int, Path] = {}
    tables = [events.SCHEMA.empty_table()]
    for path, trace in found:
        assert trace.rank is not None
        if trace.rank in seen:
            raise unusable(
                path,
                f"is of rank {trace.rank}, and so is {seen[trace.rank]}",
                "give one file for each rank of one training",
            )
        seen[trace.rank] = path
        tables.append(table(trace, trace.rank))
    formats = {source.format for source in sources}
    if len(formats) > 1:
        raise unusable(
            paths[-1],
            "is of another format than the files before it",
            "give files of one profiler",
        )
    return Reading(
        table=pa.concat_tables(tables),
        format=sources[0].format,
        version=sources[0].version,
        notes=notes,
    )


def breakdown_of_files(paths: Sequence[Path], name: str) -> tuple[Breakdown, pa.Table]:
    """The breakdown of traces that a user brought, and their events."""
    reading = read_files(paths)
    return _breakdown(reading, name, [str(path) for path in paths], None), reading.table


def breakdown_of_capture(capture: Capture, folder: Path) -> tuple[Breakdown, pa.Table]:
    """The breakdown of a capture, whose files lie in ``folder``, and its events.

    What ended otherwise than ok, or left files that cannot be read, gives a breakdown without
    devices that says why.
    """
    files = [file for rank in capture.ranks for file in rank.files]
    status, reason = capture.status, capture.reason
    if status == "ok":
        try:
            reading = read_files(
                [folder / rank.files[0] for rank in capture.ranks],
                [rank.rank for rank in capture.ranks],
            )
            return _breakdown(reading, capture.variant, files, capture.profiler_reason), (
                reading.table
            )
        except ConfigError as error:
            status, reason = "failed", str(error)
    nothing = Breakdown(
        name=capture.variant,
        status=status,
        reason=reason,
        source=None,
        source_version=None,
        profiler_reason=capture.profiler_reason,
        viewer_files=files,
        devices=[],
    )
    return nothing, events.SCHEMA.empty_table()


def _breakdown(
    reading: Reading, name: str, viewer_files: list[str], profiler_reason: str | None
) -> Breakdown:
    devices = break_down(reading.table)
    return Breakdown(
        name=name,
        status="ok" if devices else "failed",
        reason=None if devices else NO_EVENTS,
        source=reading.format,
        source_version=reading.version,
        profiler_reason=profiler_reason,
        viewer_files=viewer_files,
        devices=devices,
        summary=summarise(devices),
        notes=[*reading.notes, *_launch_notes(reading.table)],
    )


def _launch_notes(rows: pa.Table) -> list[str]:
    """A note on device events whose launch lies outside the trace."""
    frame = rows.select(["kind", "device", "launch_ns"]).filter(
        pa.compute.is_valid(rows.column("device"))
    )
    missing = frame.column("launch_ns").null_count
    if not missing:
        return []
    return [
        f"{missing:,} of {frame.num_rows:,} device events have no launch in the trace: phase and "
        "operator of those are unknown, and the host-bound time is a lower bound"
    ]


def write_events(path: Path, rows: pa.Table) -> None:
    """events.parquet, whole or not at all."""
    with atomic_path(path) as temporary:
        pq.write_table(rows, temporary, compression="zstd")
