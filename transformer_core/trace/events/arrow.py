"""The event table as a table of Arrow, for files and notebooks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from transformer_core.common.tables import arrow_array, arrow_texts, write_parts
from transformer_core.trace.events.columns import NULL, Integers, distinct
from transformer_core.trace.events.event_table import COLUMNS, TEXTS, Events
from transformer_core.trace.events.process import TraceError

_TYPES = {"int32": pa.int32(), "int64": pa.int64(), "text": pa.dictionary(pa.int32(), pa.string())}
SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
"""The columns of events.parquet, in order."""
_ROWS = 1 << 17  # rows converted at once


def table_of(events: Events) -> pa.Table:
    return _part(events, 0, len(events))


_ABOUT = b"about"


class About(BaseModel):
    """The source of the events of a file."""

    format: Literal["nsys", "kineto"] | None = None
    version: str | None = None
    notes: list[str] = []


def write_events(path: Path, events: Events, about: About | None = None) -> None:
    """Writes events.parquet, whole or not at all, in parts that take little memory each."""
    begins = range(0, max(1, len(events)), _ROWS)
    parts = (_part(events, begin, min(begin + _ROWS, len(events))) for begin in begins)
    schema = SCHEMA.with_metadata({_ABOUT: (about or About()).model_dump_json().encode()})
    write_parts(path, schema, (part.cast(schema) for part in parts), compression="zstd")


def read_events(path: Path) -> tuple[Events, About]:
    """The events in a file of :func:`write_events`, and their source; TraceError for any other file."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        table.validate(full=True)  # other programs write such files too: indices may point outside
        about = About.model_validate_json((table.schema.metadata or {}).get(_ABOUT, b"{}"))
        return events_of(table.cast(SCHEMA)), about
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = f"is not an event table ({str(error).partition(chr(10))[0]})"
        raise TraceError(path, reason, "make it again with --events") from None


def _part(events: Events, begin: int, end: int) -> pa.Table:
    arrays = []
    for column in SCHEMA:
        values = events.columns.stretch(column.name, begin, end)
        absent = values == NULL
        if absent.all():
            arrays.append(pa.nulls(len(values), column.type))
        elif column.name in TEXTS:
            arrays.append(_texts(events.texts, values))
        else:
            arrays.append(arrow_array(values, absent).cast(column.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _texts(texts: Sequence[str], values: Integers) -> pa.Array:
    """A column of texts, whose dictionary holds each text that occurs once.

    Ranks may list the same text twice. If a dictionary does so, Arrow falls back to plain texts and
    leaves unset memory in the file, which then differs from run to run.
    """
    absent = values == NULL
    present, indices = distinct(values[~absent])
    order: dict[str, int] = {}
    numbers = [order.setdefault(texts[number], len(order)) for number in present.tolist()]
    places = np.zeros(len(values), np.int32)
    places[~absent] = np.array(numbers, np.int32)[indices]
    return pa.DictionaryArray.from_arrays(arrow_array(places, absent), arrow_texts([*order]))


def events_of(table: pa.Table) -> Events:
    found = Events()
    for batch in table.to_batches():
        columns = {}
        for name in COLUMNS:
            column = batch.column(name)
            begin = len(found.texts)
            if name in TEXTS:
                found.texts += column.dictionary.to_pylist()
                column = column.indices
            values = column.cast(pa.int64()).fill_null(NULL).to_numpy()
            columns[name] = (
                np.where(values == NULL, NULL, values + begin) if name in TEXTS else values
            )
        found.columns.extend(**columns)
    return found
