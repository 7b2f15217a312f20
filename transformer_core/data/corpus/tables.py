"""Reads corpora from Parquet and Arrow files, row by row."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.config.data import ReadingLimits
from schemas.errors import nearest
from transformer_core.data.corpus.lines import beyond, check_regular, most_bytes, unreadable
from transformer_core.data.corpus.rows import CorpusError, Invalid, Pair, Row, not_utf8

_ROWS = 10_000  # limit of rows in memory at a time
_BYTES = 1 << 26  # limit of bytes of text in memory at a time, unless a single row is longer
_LIMITS = ReadingLimits()


def one_table(
    path: Path, fields: tuple[str, ...], limits: ReadingLimits = _LIMITS
) -> Iterator[Row]:
    """Yields the rows of a single Parquet or Arrow file."""
    return table_rows([path], str(path), fields, limits)


def table_rows(
    paths: list[Path], name: str, fields: tuple[str, ...], limits: ReadingLimits = _LIMITS
) -> Iterator[Row]:
    """Yields the rows of several Parquet or Arrow files, numbered consecutively; messages call the
    files ``name``. ``fields`` are the columns of source and target, or that of a text.

    Columns are read as bytes, so that a single bad row can be skipped. Raises CorpusError
    for a file that cannot be read, lacks a column of ``fields`` or exceeds the limits.
    """
    number = 0
    for path in paths:
        check_regular(path)
        try:
            if path.is_dir():
                remedy = "name one of its files, or use a corpus of the kind datasets"
                raise CorpusError("is a folder, not a file", file=path, remedy=remedy)
            for columns in _limited(_batches(path, fields), path, fields, limits, number):
                for texts in zip(*columns, strict=True):
                    number += 1
                    yield _table_row(number, name, texts, fields)
        except MemoryError as error:
            message = f"takes more than {limits.memory:,} bytes of memory after row {number:,}"
            remedy = "check the file, write it in smaller pieces (row groups, record batches), or "
            remedy += "raise corpus.limits.memory"
            raise CorpusError(message, file=path, remedy=remedy) from error
        except (pa.ArrowException, OSError, UnicodeError) as error:  # the last for names
            # For truncated data, Arrow raises an OSError too, but without errno.
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(path, error) from error
            kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
            message = f"is not a valid {kind} file, or is damaged after row {number:,} ({error})"
            remedy = f"get it again, or write it as {kind}"
            raise CorpusError(message, file=path, remedy=remedy) from error


def _limited(
    batches: Iterator[pa.RecordBatch],
    path: Path,
    fields: tuple[str, ...],
    limits: ReadingLimits,
    before: int,
) -> Iterator[list[list[bytes | None]]]:
    """Yields the columns of every batch while they stay within the limits; earlier files had
    ``before`` rows.

    A few kilobytes of a table can expand to gigabytes: pages and buffers are compressed, and a
    dictionary stores repeated values once. The stated size may be wrong, too.
    """
    total, rows = 0, before
    most = most_bytes(path, limits, compressed=True)
    while True:
        with at_most(limits.memory):
            batch = next(batches, None)
            if batch is None:
                return
            for field in fields:
                _check_places(batch, field)
            columns = [_column(batch, field) for field in fields]
            total += len(fields) * batch.num_rows  # a text counts at least its line end
            for field, column in zip(fields, columns, strict=True):
                lengths = _lengths(column)
                total += int(lengths.sum())
                if lengths.max(initial=0) > limits.line:
                    row = rows + 1 + int(lengths.argmax())
                    message = f"has {lengths.max():,} bytes in column {field} of row {row:,}"
                    raise beyond("line", message, path)
            if total > most:
                limit = "file" if most == limits.file else "ratio"
                message = f"exceeds {round(most):,} bytes of text after row {rows:,}"
                raise beyond(limit, message, path)
            texts = [column.to_pylist() for column in columns]
        rows += batch.num_rows
        yield texts


def _lengths(column: pa.LargeBinaryArray) -> np.ndarray:
    """Bytes of every row, [rows]."""
    if not len(column):
        return np.zeros(0, np.int64)  # an empty column may lack offsets
    offsets = np.frombuffer(column.buffers()[1], np.int64)
    return np.diff(offsets[column.offset : column.offset + len(column) + 1])


def _batches(path: Path, fields: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".arrow":
        yield from _arrow_batches(path, fields)
        return
    with pq.ParquetFile(path) as file:
        for field in fields:
            _check_column(path, file.schema_arrow, field)
        found = file.metadata
        size = sum(found.row_group(n).total_byte_size for n in range(found.num_row_groups))
        rows = _rows_at_a_time(size / max(found.num_rows, 1))
        yield from file.iter_batches(rows, columns=list(dict.fromkeys(fields)))


def _rows_at_a_time(row_bytes: float) -> int:
    return min(_ROWS, max(1, round(_BYTES / max(row_bytes, 1.0))))


def _arrow_batches(path: Path, fields: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yields the batches of an Arrow stream, as the library datasets writes it, or Arrow file."""
    with pa.OSFile(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            batches = reader = pa.ipc.open_stream(source)
        for field in fields:
            _check_column(path, reader.schema, field)
        for batch in batches:
            rows = _rows_at_a_time(batch.get_total_buffer_size() / max(batch.num_rows, 1))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def _check_places(batch: pa.RecordBatch, field: str) -> None:
    """Raises ArrowInvalid unless the texts of a column lie within its buffers.

    Arrow trusts the offsets of a file, and wrong ones would crash the process. Texts are checked as
    bytes, so that invalid UTF-8 only makes a bad row.
    """
    first, *rest = _column_path(batch.schema, field)
    values = batch.column(first)
    values.validate()
    for name in rest:
        values = values.field(name)
    if pa.types.is_dictionary(values.type):
        texts = values.dictionary.view(_BYTES_OF[values.type.value_type])
        pa.DictionaryArray.from_arrays(values.indices, texts, safe=False).validate(full=True)
    else:
        values.view(_BYTES_OF[values.type]).validate(full=True)


def _table_row(
    number: int, file: str, values: tuple[bytes | None, ...], fields: tuple[str, ...]
) -> Row:
    texts = []
    for value, field in zip(values, fields, strict=True):
        if value is None:
            return Invalid(number, file, "", f"column {field} is null")
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as error:
            return Invalid(number, file, value.decode(errors="replace"), not_utf8(error))
    source = texts[0] if len(fields) > 1 else ""
    return Pair(number, source, texts[-1])


def _check_column(path: Path, schema: pa.Schema, field: str) -> None:
    """Raises CorpusError unless ``field`` is a text column of ``schema``."""
    kind = pa.struct(list(schema))
    for part in _column_path(schema, field):
        names = [child.name for child in kind] if pa.types.is_struct(kind) else []
        if part not in names:
            remedy = f"{nearest(part, names)} (in the section corpus)"
            raise CorpusError(f"has no column {field}", file=path, remedy=remedy)
        if names.count(part) > 1:
            remedy = "give each column a unique name"
            raise CorpusError(f"has several columns named {part}", file=path, remedy=remedy)
        kind = kind.field(part).type
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    if text not in _BYTES_OF:
        raise CorpusError(
            f"column {field} is {kind}, not text", file=path, remedy="name a column of strings"
        )


def _column(batch: pa.RecordBatch, field: str) -> pa.LargeBinaryArray:
    first, *rest = _column_path(batch.schema, field)
    values = batch.column(first)
    if rest:
        values = pc.struct_field(values, rest)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary.cast(pa.large_string(), safe=False).take(values.indices)
    return values.cast(pa.large_string(), safe=False).cast(pa.large_binary())


def _column_path(schema: pa.Schema, field: str) -> list[str]:
    return [field] if field in schema.names else field.split(".")


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Limits this process to ``size`` additional bytes within the block: a larger allocation raises
    MemoryError before the host runs out of memory. Linux only: other systems do not count the
    memory that libraries allocate."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    # Data and stack of this process; the limit does not count the stack.
    taken = int(Path("/proc/self/statm").read_bytes().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    most = taken + size
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
