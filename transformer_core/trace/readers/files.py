"""Files of a profiler, one per rank of one training, as one event table."""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from transformer_core.trace.events.device_rows import events_of_process
from transformer_core.trace.events.event_table import Events, joined
from transformer_core.trace.events.process import Source, unusable

if TYPE_CHECKING:
    import pyarrow as pa


_SQLITE = b"SQLite format 3\x00"
_NSYS_REPORT = (b"NVIDIA Tegra Profiler Report", b"QDREP")
_EMPTY = "is empty"
_PACKED = {
    b"PK\x03\x04": ("is a zip archive", "unpack it first: unzip"),
    b"\x28\xb5\x2f\xfd": ("is packed with zstd", "unpack it first: zstd -d"),
    b"\xfd7zXZ\x00": ("is packed with xz", "unpack it first: unxz"),
    b"BZh": ("is packed with bzip2", "unpack it first: bunzip2"),
    b"\xff\xfe": ("is text of UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
}
"""What files begin with that are read once they are something else, and how they become it."""
_WORTH_PROCESSES = 64 << 20
"""Bytes of text that take longer to read than a process to start."""
_COMPRESSION = 8
_FORMATS = "give traces of torch.profiler (.json, .json.gz) or SQLite exports of Nsight Systems"


@dataclass
class ProcessTable:
    """One process of a file, and its rows."""

    path: Path
    rank: int | None
    ranks: int | None
    rows: Events


@dataclass
class FileTables:
    """What a file of a profiler holds."""

    format: Literal["nsys", "kineto"]
    version: str | None
    notes: list[str]
    processes: list[ProcessTable]


@dataclass(frozen=True)
class Reading:
    """The event table of some files, and what must be said of them."""

    events: Events
    format: Literal["nsys", "kineto"]
    version: str | None
    notes: list[str]

    @property
    def table(self) -> "pa.Table":
        """The event table as Arrow's."""
        from transformer_core.trace.events.arrow import table_of

        return table_of(self.events)


def read_source(path: Path) -> Source:
    """One file, of whichever format it is; TraceError if it cannot be used."""
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise unusable(path, reason, "check its path and permissions") from None
    database = start.startswith(_SQLITE)
    if not start:
        raise unusable(path, _EMPTY, _FORMATS)
    if start.startswith(_NSYS_REPORT) or (path.suffix in (".nsys-rep", ".qdrep") and not database):
        raise unusable(
            path,
            "is a report in the format of Nsight Systems itself",
            f"export it with nsys export --type=sqlite {path}",
        )
    for mark, (problem, remedy) in _PACKED.items():
        if start.startswith(mark):
            raise unusable(path, problem, f"{remedy} {path}")
    # One of them is enough, and importing both takes longer.
    if database:
        from transformer_core.trace.readers.nsys import read_nsys

        return read_nsys(path)
    from transformer_core.trace.readers.kineto import read_kineto

    return read_kineto(path)


def read_files(
    paths: Sequence[Path], ranks: Sequence[int] | None = None, cache: Path | None = None
) -> Reading:
    """The processes of all files in one table.

    Ranks are ``ranks`` (one for each file of one process), else those that the traces say, else
    the order of files and process ids. Large files are read side by side; what they hold is kept in
    the folder ``cache``, if there is one, and taken from there the next time. Raises TraceError for
    a file that cannot be used, for two processes of one rank, and for files of two profilers.
    """
    if ranks is None:
        _refuse_doubles(paths)
    found: list[ProcessTable] = []
    notes: list[str] = []
    formats: list[tuple[Literal["nsys", "kineto"], str | None]] = []
    for number, (path, read) in enumerate(zip(paths, _side_by_side(paths, cache), strict=True)):
        if formats and read.format != formats[0][0]:
            raise unusable(
                path,
                "is of another format than the files before it",
                "give files of one profiler",
            )
        formats.append((read.format, read.version))
        notes += [f"{path.name}: {note}" if len(paths) > 1 else note for note in read.notes]
        if ranks is not None and len(read.processes) == 1:
            read.processes[0].rank = ranks[number]
        found += read.processes
    notes += _settle_ranks(found)
    for one in found:
        one.rows.columns.replace("rank", np.full(len(one.rows), one.rank))
    return Reading(
        events=joined([one.rows for one in found]),
        format=formats[0][0],
        version=formats[0][1],
        notes=notes,
    )


def _side_by_side(paths: Sequence[Path], cache: Path | None) -> Iterator[FileTables]:
    """What the files hold, in their order; by as many processes as there are cores, if starting
    those pays."""
    read = partial(_read_one, cache=cache)
    workers = min(len(paths), _cores())
    if workers < 2 or sum(map(_text_size, paths)) < _WORTH_PROCESSES:
        yield from map(read, paths)
        return
    # Few read several files, and importing these takes long.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Forked from a process of its own: threads of Arrow may run here.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, context) as pool:
        try:
            yield from pool.map(read, paths)
        finally:
            pool.shutdown(cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _text_size(path: Path) -> int:
    """Bytes of a file, roughly as much as they are without compression; 0 if it is not there."""
    try:
        return path.stat().st_size * (_COMPRESSION if path.suffix == ".gz" else 1)
    except OSError:
        return 0  # said when it is read


def _read_one(path: Path, cache: Path | None = None) -> FileTables:
    if cache is None:
        return tables_of(path)
    from transformer_core.trace.readers.kept import kept  # files of Arrow

    return kept(path, cache, tables_of)


def tables_of(path: Path) -> FileTables:
    """The rows of the processes of a file. Those that ran nothing on a device are left out where
    others did."""
    source = read_source(path)
    busy = [trace for trace in source.processes if len(trace.device)] or source.processes
    # The rows of the table alone are kept: they are few beside what was read.
    return FileTables(
        format=source.format,
        version=source.version,
        notes=source.notes,
        processes=[
            ProcessTable(path, trace.rank, trace.ranks, events_of_process(trace)) for trace in busy
        ],
    )


def _refuse_doubles(paths: Sequence[Path]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            with path.open("rb") as stream:
                key = (path.stat().st_size, zlib.crc32(stream.read(1 << 20)))
                same = seen.get(key)
                if same and same.read_bytes() == path.read_bytes():
                    raise unusable(
                        path,
                        f"is the same as {same}",
                        "give one file for each rank of one training",
                    )
                seen[key] = path
        except OSError:
            continue  # said when it is read


def _settle_ranks(found: list[ProcessTable]) -> list[str]:
    """Give every process a rank; what must be said of it."""
    notes = []
    if any(one.rank is None for one in found):
        for place, one in enumerate(found):
            one.rank = place
        if len(found) > 1:
            notes.append("The traces do not say their ranks: they are counted in order")
    seen: dict[int | None, Path] = {}
    for one in found:
        if one.rank in seen:
            raise unusable(
                one.path,
                f"is of rank {one.rank}, and so is {seen[one.rank]}",
                "give one file for each rank of one training",
            )
        seen[one.rank] = one.path
    sizes = {one.ranks for one in found if one.ranks is not None}
    if sizes and max(sizes) > len(seen):
        notes.append(
            f"These are {len(seen)} of the {max(sizes)} ranks of the training: what the others did "
            "is unknown"
        )
    return notes
