"""The event table: what every reader makes and the breakdown reads, one row per event.

Rows are device events (kernels, copies, CUDA graphs), on a CPU the self time of operators and the
collectives of gloo, and what the host marks: steps, phases, modules, waits, memory. Times are
nanoseconds on the clock of the trace, which processes of one host share.
"""

import pyarrow as pa

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

_NAME = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("pid", pa.int64()),
        ("device", _NAME),  # cuda:<index> or cpu; null for ranges
        ("context", pa.int64()),
        ("stream", pa.int64()),  # of a CPU: the thread
        ("t0_ns", pa.int64()),
        ("t1_ns", pa.int64()),
        ("kind", _NAME),
        ("name", _NAME),
        ("class", _NAME),
        ("collective", _NAME),  # all_reduce, broadcast, ...; null unless communication
        ("copy_kind", _NAME),  # h2d, d2h, d2d, p2p, ...; null unless memcpy
        ("bytes", pa.int64()),  # copied, set, communicated or allocated; null where unknown
        ("group_size", pa.int32()),  # ranks of a collective; null where unknown
        ("group", _NAME),  # these ranks, "0,1", or "#" and a name where they are unknown
        ("correlation", pa.int64()),  # of the launch, within its process
        ("graph", pa.int64()),  # CUDA graph that the event is a node of
        ("thread", pa.int64()),  # that launched it
        ("launch_ns", pa.int64()),  # start of the launch
        ("operator", _NAME),  # innermost operator that launched it
        ("shapes", _NAME),  # of the inputs of the operator
        ("operator_class", _NAME),
        ("layer", _NAME),  # path of the module
        ("phase", _NAME),
        ("step", pa.int32()),  # number of the step that launched it, from 0
        ("flops", pa.int64()),  # of an operator, on the first of its rows
        ("operator_bytes", pa.int64()),  # read and written by an operator, likewise
    ]
)
"""The columns of events.parquet, in order."""
