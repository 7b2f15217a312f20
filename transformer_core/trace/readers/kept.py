"""The event tables of files read before, cached by the contents of the files."""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from transformer_core.common.tables import read_table, write_table
from transformer_core.trace.events.arrow import SCHEMA, events_of, table_of
from transformer_core.trace.events.event_table import joined
from transformer_core.trace.events.process import unusable
from transformer_core.trace.readers.files import FileTables, ProcessTable

_ABOUT = b"about"
_SOURCES = ("events", "readers")
"""The sources that make a table: others made another."""


def kept(path: Path, folder: Path, read: Callable[[Path], FileTables]) -> FileTables:
    """Returns the tables that ``read`` makes of a file, or kept ones of a file with the same
    content."""
    try:
        place = folder / f"{_digest(path)}.parquet"
    except OSError:
        return read(path)  # which reports the error
    if place.is_file():
        try:
            return _opened(place, path)
        except (OSError, pa.ArrowException, KeyError, ValueError):
            place.unlink(missing_ok=True)  # not ours, or damaged: made again
    found = read(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _keep(place, found)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise unusable(folder, reason, "name another folder for events to keep") from None
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashlib.sha256(f"{content} {_sources()}".encode()).hexdigest()


@cache
def _sources() -> str:
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for source in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _keep(place: Path, found: FileTables) -> None:
    about = {
        "format": found.format,
        "version": found.version,
        "notes": found.notes,
        "processes": [
            {"rank": one.rank, "ranks": one.ranks, "rows": len(one.rows)} for one in found.processes
        ],
    }
    rows = table_of(joined([one.rows for one in found.processes]))
    told = rows.replace_schema_metadata({_ABOUT: json.dumps(about).encode()})
    write_table(place, told, compression="zstd")


def _opened(place: Path, path: Path) -> FileTables:
    rows = read_table(place)
    about: dict[str, Any] = json.loads(rows.schema.metadata[_ABOUT])
    rows = rows.replace_schema_metadata(None).cast(SCHEMA)
    processes, begin = [], 0
    for one in about["processes"]:
        mine = rows.slice(begin, one["rows"])
        processes.append(ProcessTable(path, one["rank"], one["ranks"], events_of(mine)))
        begin += one["rows"]
    return FileTables(about["format"], about["version"], about["notes"], processes)
