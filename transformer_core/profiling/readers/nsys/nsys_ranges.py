"""NVTX ranges of a report: operators of PyTorch, collectives of NCCL, and what programs mark."""

import json
import re
from typing import NamedTuple

from transformer_core.profiling.operators.collective_names import OTHER, collective_of
from transformer_core.profiling.readers.columns import NULL, or_null
from transformer_core.profiling.readers.process_groups import group_named
from transformer_core.profiling.readers.process_trace import ProcessTrace

_OPERATOR = re.compile(r"([\w.]+::[^,]+|[A-Z]\w*Backward\d*)(, .*)?")
"""A range that torch.autograd.profiler.emit_nvtx sets:
``aten::mm, seq = 3, op_id = 7, sizes = [[…]]``."""
_SIZES = re.compile(r"sizes = (\[.*?\])(?:, input_op_ids|$)")
_SEQUENCE = re.compile(r"\bseq = (\d+)")
_COLLECTIVE = re.compile(r"(nccl|rccl|gloo|ucc|mpi):.*|nccl[A-Z]\w*")
_PAYLOAD_BYTES = re.compile(r"message size.*bytes", re.IGNORECASE)
_PAYLOAD_GROUP = re.compile(r"communicator id", re.IGNORECASE)


class Range(NamedTuple):
    """A range on a thread, in nanoseconds; ``payload`` is a text of JSON."""

    thread: int
    t0: int
    t1: int
    name: str
    payload: str | None


def add_range(trace: ProcessTrace, found: Range) -> None:
    """Take up a range as what it is."""
    names, place = trace.names, (found.thread, found.t0, found.t1)
    if _COLLECTIVE.fullmatch(found.name):
        if collective_of(found.name) != OTHER:
            size, group = _payload(found.payload)
            name = found.name.partition(",")[0]
            members = NULL if group is None else names[group_named(str(group))]
            trace.collectives.add(*place, names[name], or_null(size), NULL, members, 0)
    elif operator := _OPERATOR.fullmatch(found.name):
        rest = operator[2] or ""
        sizes, sequence = _SIZES.search(rest), _SEQUENCE.search(rest)
        call = trace.call(operator[1], sizes[1] if sizes else "", "")
        number = int(sequence[1]) if sequence else -1
        trace.operators.add(*place, names[operator[1]], call, number)
    else:
        trace.ranges.add(*place, names[found.name])


def _payload(payload: str | None) -> tuple[int | None, int | None]:
    """Size of the message and communicator in the payload of NCCL's own ranges; null where there
    is none."""
    try:
        fields = json.loads(payload or "{}")
    except ValueError:
        return None, None
    if not isinstance(fields, dict):
        return None, None

    def first(pattern: re.Pattern[str]) -> int | None:
        named = (value for key, value in fields.items() if pattern.search(key))
        return next((value for value in named if type(value) is int), None)

    return first(_PAYLOAD_BYTES), first(_PAYLOAD_GROUP)
