"""The event table: what every reader makes and the breakdown reads, one row per event.

Rows are device events (kernels, copies, CUDA graphs), on a CPU the self time of operators and the
collectives of gloo, and what the host marks: steps, phases, modules, waits, memory. Times are
nanoseconds on the clock of the trace, which processes of one host share. In memory the table is of
packed arrays of numpy: to import Arrow takes as much memory as the events of a trace of 300 MB, and
is left to what reads and writes files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.readers.columns import NULL, Columns, nulls

HOST_KINDS = ("range", "module", "wait", "memory")
"""Kinds of rows that are no work: a step or phase; a call of a module, with the bytes that it
leaves allocated; a call in which the host waits for a device; the bytes allocated on a device."""

KINDS = ("kernel", "memcpy", "memset", "graph", "operator", *HOST_KINDS)
"""Kinds of rows. ``operator`` is work of a CPU."""

COMPUTE = "compute"
COMMUNICATION = "communication"
MEMCPY = "memcpy"
MEMSET = "memset"
GRAPH = "graph"

CLASSES = (COMPUTE, COMMUNICATION, MEMCPY, MEMSET, GRAPH)
"""Classes of device time. A row of :data:`HOST_KINDS` has none."""

COLUMNS = {
    "rank": "int32",
    "pid": "int64",
    "device": "text",  # cuda:<index> or cpu; null for ranges
    "context": "int64",
    "stream": "int64",  # of a CPU: the thread
    "t0_ns": "int64",
    "t1_ns": "int64",
    "kind": "text",
    "name": "text",
    "class": "text",
    "collective": "text",  # all_reduce, broadcast, ...; null unless communication
    "copy_kind": "text",  # h2d, d2h, d2d, p2p, ...; null unless memcpy
    "bytes": "int64",  # copied, set, communicated or allocated; null where unknown
    "group_size": "int32",  # ranks of a collective; null where unknown
    "group": "text",  # these ranks, "0,1", or "#" and a name where they are unknown
    "correlation": "int64",  # of the launch, within its process
    "graph": "int64",  # CUDA graph that the event is a node of
    "thread": "int64",  # that launched it
    "launch_ns": "int64",  # start of the launch
    "operator": "text",  # innermost operator that launched it
    "shapes": "text",  # of the inputs of the operator
    "operator_class": "text",
    "layer": "text",  # path of the module
    "phase": "text",
    "step": "int32",  # number of the step that launched it, from 0
    "flops": "int64",  # of an operator, on the first of its rows
    "operator_bytes": "int64",  # read and written by an operator, likewise
}
"""The columns of events.parquet, in order, and what they hold."""

TEXTS = frozenset(name for name, kind in COLUMNS.items() if kind == "text")
"""Those of texts."""


@dataclass
class Events:
    """Rows of the table."""

    columns: Columns = field(default_factory=lambda: Columns(*COLUMNS))
    """By the names of :data:`COLUMNS`; those of texts hold places in ``texts``."""
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.columns)

    def where(self, mask: NDArray[np.bool_]) -> "Events":
        """Some of the rows."""
        found = Events(texts=self.texts)
        count = int(mask.sum())
        found.columns.extend(count, **{name: self.columns[name][mask] for name in COLUMNS})
        return found

    def of_kind(self, kind: str) -> NDArray[np.bool_]:
        """Which rows are of a kind."""
        return np.isin(self.columns["kind"], [k for k, t in enumerate(self.texts) if t == kind])


def joined(parts: Sequence[Events]) -> Events:
    """The rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    found = Events()
    begins = []
    for part in parts:
        # Parts of one process share their texts.
        same = part.texts is parts[0].texts
        begins.append(0 if same else len(found.texts))
        found.texts += [] if same and len(begins) > 1 else part.texts
    for name in COLUMNS:
        columns = [part.columns[name] for part in parts]
        if name in TEXTS:
            columns = [
                np.where(values == NULL, NULL, values + begin)
                for values, begin in zip(columns, begins, strict=True)
            ]
        found.columns.replace(name, np.concatenate(columns) if columns else nulls(0))
    return found
