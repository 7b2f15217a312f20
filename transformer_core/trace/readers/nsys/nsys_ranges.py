"""NVTX ranges of a report: operators of PyTorch, collectives of NCCL, and what programs mark."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.operators.collective_names import OTHER, collective_of
from transformer_core.trace.readers.columns import NULL, Integers, or_null
from transformer_core.trace.readers.process_groups import group_named
from transformer_core.trace.readers.process_trace import ProcessTrace

_OPERATOR = re.compile(r"[\w.]+::[^,]+|[A-Z]\w*Backward\d*")
"""How a range begins that torch.autograd.profiler.emit_nvtx sets:
``aten::mm, seq = 3, op_id = 7, sizes = [[…]]``."""
_SIZES = re.compile(r"sizes = (\[.*?\])(?:, input_op_ids|$)")
_SEQUENCE = re.compile(r"\bseq = ([0-9]{1,18})\b")
_COLLECTIVE = re.compile(r"(nccl|rccl|gloo|ucc|mpi):.*|nccl[A-Z]\w*")
_PAYLOAD_BYTES = re.compile(r"message size.*bytes", re.IGNORECASE)
_PAYLOAD_GROUP = re.compile(r"communicator id", re.IGNORECASE)


@dataclass(frozen=True)
class Ranges:
    """Ranges of a process: their threads, begins and ends in nanoseconds, and texts."""

    thread: Integers
    t0: Integers
    t1: Integers
    names: Sequence[str]
    payload: Callable[[int], str | None]
    """A text of JSON for the range at a place, if it has one."""

    def where(self, chosen: NDArray[np.int64]) -> dict[str, Integers]:
        """The columns of some of them."""
        return {"thread": self.thread[chosen], "t0": self.t0[chosen], "t1": self.t1[chosen]}


def add_ranges(trace: ProcessTrace, found: Ranges) -> None:
    """Take up ranges as what they are. Most are operators, each with a text of its own, so that
    only what stands before the first comma is looked up, and the rest searched for what it has."""
    heads = [name.partition(", ")[0] for name in found.names]
    kinds = np.array([_kind(head) for head in heads], np.int8)
    # What begins like a collective is one only if all of its text is.
    for place in np.flatnonzero(kinds == _TALKS).tolist():
        if _COLLECTIVE.fullmatch(found.names[place]):
            _add_collective(trace, found, place)
        else:
            kinds[place] = _MARKS
    marks, operators = np.flatnonzero(kinds == _MARKS), np.flatnonzero(kinds == _OPERATES)
    labels = [found.names[place] for place in marks.tolist()]
    trace.ranges.extend(len(marks), **found.where(marks), name=trace.names.of(labels))
    labels = [heads[place] for place in operators.tolist()]
    texts = [found.names[place] for place in operators.tolist()]
    trace.operators.extend(
        len(operators),
        **found.where(operators),
        name=trace.names.of(labels),
        call=_calls(trace, labels, texts),
        sequence=np.array([_sequence(t) if "seq = " in t else -1 for t in texts], np.int64),
    )


_MARKS, _OPERATES, _TALKS = range(3)


@lru_cache(maxsize=1 << 14)
def _kind(head: str) -> int:
    """What a range may be by the begin of its text."""
    if _COLLECTIVE.fullmatch(head):
        return _TALKS
    return _OPERATES if _OPERATOR.fullmatch(head) else _MARKS


def _calls(trace: ProcessTrace, names: Sequence[str], texts: Sequence[str]) -> Integers:
    found = np.zeros(len(names), np.int64)
    for place, text in enumerate(texts):
        if "sizes = " in text and (sizes := _SIZES.search(text)):
            found[place] = trace.call(names[place], sizes[1], "")
    return found


def _sequence(text: str) -> int:
    found = _SEQUENCE.search(text)
    return int(found[1]) if found else -1


def _add_collective(trace: ProcessTrace, found: Ranges, place: int) -> None:
    name = found.names[place]
    if collective_of(name) != OTHER:
        size, group = _payload(found.payload(place))
        number = trace.names[name.partition(",")[0]]
        members = NULL if group is None else trace.names[group_named(str(group))]
        times = (int(column[place]) for column in (found.thread, found.t0, found.t1))
        trace.collectives.add(*times, number, or_null(size), NULL, members, 0)


def _payload(payload: str | None) -> tuple[int | None, int | None]:
    """Size of the message and communicator in the payload of NCCL's own ranges; null where there
    is none."""
    try:
        fields = json.loads(payload or "{}")
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(fields, dict):
        return None, None

    def first(pattern: re.Pattern[str]) -> int | None:
        named = (value for key, value in fields.items() if pattern.search(key))
        return next((value for value in named if type(value) is int), None)

    return first(_PAYLOAD_BYTES), first(_PAYLOAD_GROUP)
