"""Reads a profiler's files, one per rank of a training, into one event table."""

import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from transformer_core.common.pools import end_with_maker
from transformer_core.trace.events.event_table import Events, joined
from transformer_core.trace.events.process import NotATrace, ProcessTrace, Source, TraceError
from transformer_core.trace.events.process_rows import events_of_process

_SQLITE = b"SQLite format 3\x00"
_NSYS_REPORT = (b"NVIDIA Tegra Profiler Report", b"QDREP")
_PACKED = {
    b"PK\x03\x04": ("is a zip archive", "unpack it first: unzip"),
    b"\x28\xb5\x2f\xfd": ("is compressed with zstd", "decompress it first: zstd -d"),
    b"\xfd7zXZ\x00": ("is compressed with xz", "decompress it first: unxz"),
    b"BZh": ("is compressed with bzip2", "decompress it first: bunzip2"),
    b"7z\xbc\xaf": ("is a 7z archive", "unpack it first: 7z x"),
    b"\x04\x22\x4d\x18": ("is compressed with lz4", "decompress it first: lz4 -d"),
    b"PAR1": ("is a Parquet table", "give a single event table, named .parquet:"),
    b"\xff\xfe\0\0": ("is UTF-32 text", "convert it to UTF-8: iconv -f UTF-32 -t UTF-8"),
    b"\xff\xfe": ("is UTF-16 text", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"),
}
"""First bytes of files that must be converted before they can be read, with the remedy."""
_WORTH_PROCESSES = 64 << 20  # bytes of text that take longer to read than a process takes to start
_COMPRESSION = 8
_SUFFIXES = (".json", ".gz", ".sqlite")
"""Endings of the names of traces; other files of a folder are skipped."""
_MOST = 2048  # devices, streams, threads or processes allowed in a file
_ONE_EACH = "give one file for each rank of one training"
_FORMATS = "give traces of torch.profiler (.json, .json.gz) or SQLite exports of Nsight Systems"


@dataclass
class ProcessTable:
    path: Path
    rank: int | None
    ranks: int | None
    rows: Events


@dataclass(frozen=True)
class Reading:
    files: list[Path] = field(default_factory=list)  # the files read, in the order of the table
    events: Events = field(default_factory=Events)
    format: Literal["nsys", "kineto"] | None = None
    version: str | None = None
    notes: list[str] = field(default_factory=list)


def traces_of(paths: Sequence[Path]) -> list[Path]:
    """The files to read; of a folder, those with the name of a trace. TraceError if it holds none."""
    found: list[Path] = []
    for path in paths:
        inside = [one for one in _inside(path) if one.suffix in _SUFFIXES]
        if path.is_dir() and not inside:
            told = "".join(f" ({note})" for note in _others([path]))
            raise TraceError(path, f"holds no traces{told}", "name the files, or another folder")
        found += inside or [path]
    return found


def _inside(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    found = (one for one in path.iterdir() if one.is_file() and one.name[0] != ".")
    return sorted(found, key=_by_number)


def _by_number(path: Path) -> list[str | int]:
    """Sorts rank2 before rank10."""
    parts = re.split(r"([0-9]+)", path.name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _start(path: Path) -> bytes:
    """The first bytes of a regular file; TraceError for anything else."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            problem = "is not a regular file and may never end"
            raise TraceError(path, problem, "write it to a file first")
        with path.open("rb") as stream:
            return stream.read(64)
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise TraceError(path, reason, "check its path and permissions") from None


def read_source(path: Path) -> Source[ProcessTrace]:
    """Reads one file of either format; TraceError if it cannot be used, NotATrace if it is not a
    trace."""
    start = _start(path)
    database = start.startswith(_SQLITE)
    if not start:
        raise NotATrace(path, "is empty", _FORMATS)
    if start.startswith(_NSYS_REPORT) or (path.suffix in (".nsys-rep", ".qdrep") and not database):
        raise NotATrace(
            path,
            "is a report in the format of Nsight Systems itself",
            f"export it with nsys export --type=sqlite {path}",
        )
    for mark, (problem, remedy) in _PACKED.items():
        if start.startswith(mark):
            raise NotATrace(path, problem, f"{remedy} {path}")
    # Importing only the reader that is needed is faster.
    if database:
        from transformer_core.trace.readers.nsys import read_nsys

        return read_nsys(path)
    from transformer_core.trace.readers.kineto import read_kineto

    return read_kineto(path)


def read_files(paths: Sequence[Path], ranks: Sequence[int] | None = None) -> Reading:
    """Reads the processes of all files into one table; a folder stands for the traces in it.

    The ranks are ``ranks`` (one for each file of one process), else those in the traces, else the
    order of files and process ids. Large files are read in parallel. Other files in a folder are
    left out with a note. An event table written earlier (events.parquet) is returned unchanged.
    Raises TraceError for a file that cannot be used, for two processes with the same rank, and for
    files of two profilers.
    """
    files = traces_of(paths)
    for path in files:
        _start(path)
    if len(files) == 1 and files[0].suffix == ".parquet":
        from transformer_core.trace.events.arrow import read_events

        events, about = read_events(files[0])
        return Reading(files, events, about.format, about.version, about.notes)
    found: list[ProcessTable] = []
    notes: list[str] = []
    passed: list[NotATrace] = []
    formats: list[tuple[Literal["nsys", "kineto"], str | None]] = []
    for number, (path, read) in enumerate(zip(files, _side_by_side(files), strict=True)):
        if isinstance(read, NotATrace):
            if path in paths:
                raise read
            passed.append(read)
            continue
        if formats and read.format != formats[0][0]:
            reason = "has a different format from the files before it"
            raise TraceError(path, reason, "give files of one profiler")
        formats.append((read.format, read.version))
        notes += [f"{path.name}: {note}" if len(files) > 1 else note for note in read.notes]
        if ranks is not None and len(read.processes) == 1:
            read.processes[0].rank = ranks[number]
        found += read.processes
    if not formats:
        folder = next(path for path in paths if path.is_dir())
        raise TraceError(
            folder, f"holds no traces: {passed[0]}", "name the files, or another folder"
        )
    left_out = {one.path for one in passed}
    files = [path for path in files if path not in left_out]
    if ranks is None:
        _refuse_doubles(files)
    notes += [f"{one.path.name} was left out: it {one.reason}" for one in passed]
    notes += _others(paths)
    notes += _settle_ranks(found)
    for one in found:
        one.rows.columns.replace("rank", np.full(len(one.rows), one.rank))
    return Reading(
        files=files,
        events=joined([one.rows for one in found]),
        format=formats[0][0],
        version=formats[0][1],
        notes=[encodable(note) for note in notes],
    )


def encodable(text: str) -> str:
    """``text`` without the surrogates that stand for bytes of file names other than UTF-8."""
    return text.encode(errors="replace").decode()


def _others(paths: Sequence[Path]) -> list[str]:
    """A note on the files of folders that do not have the name of a trace."""
    others = [one.name for path in paths for one in _inside(path) if one.suffix not in _SUFFIXES]
    if not others:
        return []
    told = ", ".join(others[:4]) + (f", ... ({len(others)})" if len(others) > 4 else "")
    reports = any(name.endswith((".nsys-rep", ".qdrep")) for name in others)
    export = "; reports are read once exported: nsys export --type=sqlite" if reports else ""
    ends = ", ".join(_SUFFIXES)
    return [f"left out, since their names do not end in {ends}: {told}{export}"]


def _side_by_side(paths: Sequence[Path]) -> Iterator[Source[ProcessTable] | NotATrace]:
    """Reads the files and yields their contents in order; in parallel if that is faster."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = min(len(paths), cores or 1)
    # About the uncompressed size, in bytes.
    sizes = (path.stat().st_size * (_COMPRESSION if path.suffix == ".gz" else 1) for path in paths)
    if workers < 2 or sum(sizes) < _WORTH_PROCESSES:
        yield from map(_read_one, paths)
        return
    # Slow to import, and rarely needed.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Forked from a separate server process: threads of Arrow may be running in this one.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, context, end_with_maker) as pool:
        done = 0
        try:
            for found in pool.map(_read_one, paths):
                yield found
                done += 1
        except BrokenProcessPool:
            reason = "cannot be read: the process that read it or a file beside it was killed"
            raise TraceError(
                paths[done], reason, "free some memory, or give fewer files at once"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _read_one(path: Path) -> Source[ProcessTable] | NotATrace:
    """The rows of the processes of a file, or why it is not a trace. If any process used a device,
    those that did not are left out."""
    try:
        source = read_source(path)
    except NotATrace as error:
        return error
    busy = [trace for trace in source.processes if len(trace.device)] or source.processes
    _refuse_crowds(path, busy)
    # Keeps only the rows of the table: they take far less memory than the trace.
    tables = [
        ProcessTable(path, trace.rank, trace.ranks, events_of_process(trace)) for trace in busy
    ]
    return Source(source.format, source.version, tables, source.notes)


def _refuse_crowds(path: Path, traces: Sequence[ProcessTrace]) -> None:
    """Raises TraceError for more devices, streams or threads than any machine has: each is processed
    separately."""
    found = {"processes": [np.arange(len(traces))]}
    found["devices"] = [t.device["device"] for t in traces]
    found["streams"] = [t.device["device"] * 1_000_003 + t.device["stream"] for t in traces]
    found["threads"] = [t.operators["thread"] for t in traces if not len(t.device)]
    for what, numbers in found.items():
        count = sum(len(np.unique(each)) for each in numbers)
        if count > _MOST:
            reason = f"names {count:,} {what}, more than the limit of {_MOST:,}"
            raise TraceError(path, reason, "give a trace of one process, or fewer processes in one")


def _refuse_doubles(paths: Sequence[Path]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        with path.open("rb") as stream:
            key = (path.stat().st_size, zlib.crc32(stream.read(1 << 20)))
        same = seen.get(key)
        if same and same.read_bytes() == path.read_bytes():
            raise TraceError(path, f"is the same as {same}", _ONE_EACH)
        seen[key] = path


def _settle_ranks(found: list[ProcessTable]) -> list[str]:
    notes = []
    if any(one.rank is None for one in found):
        for place, one in enumerate(found):
            again = (other.rank for other in found[:place] if _same_process(one, other))
            one.rank = next(again, place)
        if len(found) > 1:
            notes.append("The traces do not say their ranks: they are counted in order")
    _refuse_two_recordings(found)
    seen = {one.rank for one in found}
    sizes = {one.ranks for one in found if one.ranks is not None}
    if sizes and max(sizes) > len(seen):
        notes.append(
            f"These are {len(seen)} of the {max(sizes)} ranks of the training: the work of the others "
            "is unknown"
        )
    return notes


def _same_process(one: ProcessTable, other: ProcessTable) -> bool:
    """Whether both are of one process, at different times, as with a schedule that repeats."""
    if not len(one.rows) or not len(other.rows):
        return False
    (pid, begin, end), (same, first, last) = (
        (int(each["pid"][0]), int(each["t0_ns"].min()), int(each["t1_ns"].max()))
        for each in (one.rows.columns, other.rows.columns)
    )
    return 0 < pid == same and (end < first or last < begin)


def _refuse_two_recordings(found: Sequence[ProcessTable]) -> None:
    """Raises TraceError if ranks occur twice or the numbers of ranks differ. The message says which
    files belong together, by number of ranks and by time."""

    def begin(one: ProcessTable) -> int:
        return int(one.rows.columns["t0_ns"].min()) if len(one.rows) else 0

    recordings: list[list[ProcessTable]] = []
    for one in sorted(found, key=begin):
        for mine in recordings:
            if mine[0].ranks == one.ranks and all(one.rank != other.rank for other in mine):
                mine.append(one)
                break
        else:
            recordings.append([one])
    if len(recordings) < 2:
        return
    first, second = recordings[0][0], recordings[1][0]
    told = "; ".join(
        ", ".join(dict.fromkeys(one.path.name for one in mine)) for mine in recordings[:4]
    )
    twice = next((one for one in recordings[0] if one.rank == second.rank), None)
    ranks = [one.ranks or "an unknown number of" for one in (second, first)]
    reason = f"is of {ranks[0]} ranks, and {first.path} of {ranks[1]} ranks"
    if twice:
        reason = f"is of rank {second.rank}, and so is {twice.path}"
    raise TraceError(
        second.path, f"{reason}: these are {len(recordings)} recordings ({told})", _ONE_EACH
    )
