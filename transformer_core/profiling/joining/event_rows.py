"""From what a reader found in a process to rows of the event table.

A kernel says neither its operator nor its phase; its launch does. Correlation ids join the two
within a process, the operator is the innermost one around the launch on the launching thread, and
the phase is that of any thread, because PyTorch launches backward from threads of its own.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from transformer_core.profiling.events import event_table
from transformer_core.profiling.events.arrow_arrays import integers, nulls, strings
from transformer_core.profiling.joining.device_rows import device_rows
from transformer_core.profiling.joining.host_rows import host_rows
from transformer_core.profiling.joining.marked_rows import memory, modules, ranges, waits
from transformer_core.profiling.joining.process_rows import ProcessRows
from transformer_core.profiling.readers.columns import NULL, Integers
from transformer_core.profiling.readers.process_trace import ProcessTrace

_CLOCK = ("t0_ns", "t1_ns", "launch_ns")


def table(trace: ProcessTrace, rank: int = 0) -> pa.Table:
    """The rows of a process as :data:`event_table.SCHEMA`: its device events, or where it has none
    what its CPU did, and what its host marks."""
    rows = ProcessRows(trace)
    work = device_rows if len(trace.device) else host_rows
    parts = (work, ranges, modules, waits, memory)
    return pa.concat_tables([_finished(trace, part(rows), rank) for part in parts])


def _finished(trace: ProcessTrace, rows: Mapping[str, Integers], rank: int) -> pa.Table:
    """Rows as a table with all columns of the schema."""
    count = len(rows["t0_ns"])
    rows = {**rows, "rank": np.full(count, rank), "pid": np.full(count, trace.pid)}
    arrays = []
    for column in event_table.SCHEMA:
        values = rows.get(column.name)
        if values is None:
            arrays.append(nulls(count, column.type))
            continue
        absent = values == NULL
        if column.name in _CLOCK:
            values = np.where(absent, NULL, values + trace.offset_ns)
        if pa.types.is_dictionary(column.type):
            arrays.append(_texts(trace, values, absent))
        else:
            arrays.append(integers(np.where(absent, 0, values), column.type, absent))
    return pa.Table.from_arrays(arrays, schema=event_table.SCHEMA)


def _texts(trace: ProcessTrace, values: Integers, absent: np.ndarray) -> pa.Array:
    """A column of texts with those alone that it holds."""
    present, indices = np.unique(values[~absent], return_inverse=True)
    places = np.zeros(len(values), np.int32)
    places[~absent] = indices
    texts = [trace.names.texts[number] for number in present.tolist()]
    return pa.DictionaryArray.from_arrays(integers(places, pa.int32(), absent), strings(texts))
