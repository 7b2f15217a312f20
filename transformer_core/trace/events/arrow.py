"""The event table of Arrow, as files hold it, and that of numpy, without what imports pandas:
``pyarrow.array``, ``to_numpy`` and scalars. That takes as long as reading a small trace, and as
much memory."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from transformer_core.common.tables import write_parts
from transformer_core.trace.events.columns import NULL, Integers, distinct
from transformer_core.trace.events.event_table import COLUMNS, TEXTS, Events
from transformer_core.trace.events.process import unusable

_TYPES = {"int32": pa.int32(), "int64": pa.int64(), "text": pa.dictionary(pa.int32(), pa.string())}
SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
"""The columns of events.parquet, in order."""
_ROWS = 1 << 17  # rows that are made into Arrow's at once


def integers(
    values: NDArray, kind: pa.DataType, absent: NDArray[np.bool_] | None = None
) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(values, kind.to_pandas_dtype()))
    present = None
    if absent is not None and absent.any():
        present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [present, data])


def strings(texts: Sequence[str]) -> pa.Array:
    parts = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers)


def numbers(array: pa.Array, null: int) -> NDArray[np.int64]:
    """Whole numbers of an array, ``null`` for null."""
    validity, data = array.buffers()
    kind = array.type.to_pandas_dtype()
    if not len(array):
        return np.empty(0, np.int64)
    place = array.offset * np.dtype(kind).itemsize
    found = np.frombuffer(data, kind, len(array), place).astype(np.int64)
    if array.null_count and validity is not None:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        found[bits[array.offset : array.offset + len(array)] == 0] = null
    return found


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """A column without values; all of them share a piece of memory."""
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(nulls(count, kind.index_type), strings([]))
    zeros = _zeros(-(-count // 2**16) * 2**16)
    return pa.Array.from_buffers(kind, count, [zeros, zeros])


@lru_cache(maxsize=1)
def _zeros(count: int) -> pa.Buffer:
    return pa.py_buffer(bytes(8 * count))


def table_of(events: Events) -> pa.Table:
    return _part(events, 0, len(events))


_ABOUT = b"about"


def write_events(
    path: Path, events: Events | pa.Table, about: Mapping[str, Any] | None = None
) -> None:
    """events.parquet, whole or not at all, in parts of so few rows that it does not matter how many
    there are in all; ``about`` says what it was read from."""
    begins = range(0, max(1, len(events)), _ROWS)
    parts = (
        [events]
        if isinstance(events, pa.Table)
        else (_part(events, begin, min(begin + _ROWS, len(events))) for begin in begins)
    )
    schema = SCHEMA.with_metadata({_ABOUT: json.dumps(about or {}).encode()})
    write_parts(path, schema, (part.cast(schema) for part in parts), compression="zstd")


def read_events(path: Path) -> tuple[Events, dict[str, Any]]:
    """A file of :func:`write_events`, and what it says of itself; TraceError for anything else."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        table.validate(full=True)  # strangers write such files too: no view may lie outside
        about = json.loads((table.schema.metadata or {}).get(_ABOUT, b"{}"))
        return events_of(table.cast(SCHEMA)), dict(about)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = f"is not an event table ({str(error).partition(chr(10))[0]})"
        raise unusable(path, reason, "make it again with --events") from None


def _part(events: Events, begin: int, end: int) -> pa.Table:
    arrays = []
    for column in SCHEMA:
        values = events.columns.stretch(column.name, begin, end)
        absent = values == NULL
        if absent.all():
            arrays.append(nulls(len(values), column.type))
        elif column.name in TEXTS:
            arrays.append(_texts(events.texts, values, absent))
        else:
            arrays.append(integers(np.where(absent, 0, values), column.type, absent))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _texts(texts: Sequence[str], values: Integers, absent: NDArray[np.bool_]) -> pa.Array:
    """A column of texts with those alone that it holds."""
    present, indices = distinct(values[~absent])
    places = np.zeros(len(values), np.int32)
    places[~absent] = indices
    known = strings([texts[number] for number in present.tolist()])
    return pa.DictionaryArray.from_arrays(integers(places, pa.int32(), absent), known)


def events_of(table: pa.Table) -> Events:
    found = Events()
    for batch in table.to_batches():
        columns = {}
        for name in COLUMNS:
            column = batch.column(name)
            if name not in TEXTS:
                columns[name] = numbers(column, NULL)
                continue
            begin = len(found.texts)
            found.texts += column.dictionary.to_pylist()
            places = numbers(column.indices, NULL)
            columns[name] = np.where(places == NULL, NULL, places + begin)
        found.columns.extend(batch.num_rows, **columns)
    return found
