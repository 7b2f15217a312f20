"""From what a reader found in a process to rows of the event table.

A kernel says neither its operator nor its phase; its launch does. Correlation ids join the two
within a process, the operator is the innermost one around the launch on the launching thread, and
the phase is that of any thread, because PyTorch launches backward from threads of its own.
"""

from collections.abc import Iterable

import numpy as np

from transformer_core.trace.events.event_table import COLUMNS, Events, joined
from transformer_core.trace.joining.device_rows import device_rows
from transformer_core.trace.joining.host_rows import host_rows
from transformer_core.trace.joining.marked_rows import memory, modules, ranges, waits
from transformer_core.trace.joining.process_rows import ProcessRows
from transformer_core.trace.readers.columns import NULL, Integers
from transformer_core.trace.readers.process_trace import ProcessTrace

_CLOCK = ("t0_ns", "t1_ns", "launch_ns")


def events_of_process(trace: ProcessTrace, rank: int = 0) -> Events:
    """The rows of a process: its device events, or where it has none what its CPU did, and what its
    host marks."""
    rows = ProcessRows(trace)
    work = device_rows(rows) if len(trace.device) else host_rows(rows).items()
    parts = [_packed(trace, rank, work)]
    parts += [_packed(trace, rank, p(rows).items()) for p in (ranges, modules, waits, memory)]
    return joined([part for part in parts if len(part)] or parts[:1])


def _packed(trace: ProcessTrace, rank: int, columns: Iterable[tuple[str, Integers]]) -> Events:
    """Rows of which each column is packed as soon as it is there."""
    found, count = Events(texts=trace.names.texts), 0
    for name, values in columns:
        if name in _CLOCK and trace.offset_ns:
            values = np.where(values == NULL, NULL, values + trace.offset_ns)
        found.columns.replace(name, values)
        count = len(values)
    for name in COLUMNS:
        if not len(found.columns[name]):
            usual = {"rank": rank, "pid": trace.pid}.get(name, NULL)
            found.columns.replace(name, np.full(count, usual, np.int64))
    return found
