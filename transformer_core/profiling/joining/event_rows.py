"""From what a reader found in a process to rows of the event table.

A kernel says neither its operator nor its phase; its launch does. Correlation ids join the two
within a process, the operator is the innermost one around the launch on the launching thread, and
the phase is that of any thread, because PyTorch launches backward from threads of its own.
"""

import numpy as np

from transformer_core.profiling.events.event_table import Events
from transformer_core.profiling.joining.device_rows import device_rows
from transformer_core.profiling.joining.host_rows import host_rows
from transformer_core.profiling.joining.marked_rows import memory, modules, ranges, waits
from transformer_core.profiling.joining.process_rows import ProcessRows
from transformer_core.profiling.readers.columns import NULL
from transformer_core.profiling.readers.process_trace import ProcessTrace

_CLOCK = ("t0_ns", "t1_ns", "launch_ns")


def events_of_process(trace: ProcessTrace, rank: int = 0) -> Events:
    """The rows of a process: its device events, or where it has none what its CPU did, and what its
    host marks."""
    rows, found = ProcessRows(trace), Events(texts=trace.names.texts)
    work = device_rows if len(trace.device) else host_rows
    for part in (work, ranges, modules, waits, memory):
        columns = part(rows)
        for name in columns.keys() & set(_CLOCK):
            values = columns[name]
            columns[name] = np.where(values == NULL, NULL, values + trace.offset_ns)
        found.columns.extend(len(columns["t0_ns"]), rank=rank, pid=trace.pid, **columns)
    return found
