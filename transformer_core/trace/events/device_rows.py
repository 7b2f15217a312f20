"""From what a reader found in a process to rows of the event table: device events, each with its launch
and with what ran around that, beside the rows of the host.

A kernel says neither its operator nor its phase; its launch does. Correlation ids join the two within
a process, the operator is the innermost one around the launch on the launching thread, and the phase
is that of any thread, because PyTorch launches backward from threads of its own.
"""

from collections.abc import Generator, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events import event_table
from transformer_core.trace.events import operators as operator_classes
from transformer_core.trace.events.collectives import collective_named, collective_of, refined
from transformer_core.trace.events.columns import NULL, Integers, distinct
from transformer_core.trace.events.event_table import COLUMNS, Events, joined
from transformer_core.trace.events.host_rows import (
    ProcessRows,
    host_rows,
    memory,
    module_calls,
    ranges,
    waits,
)
from transformer_core.trace.events.joins import around, first_launches, mapped, taken
from transformer_core.trace.events.operators import kernel_class
from transformer_core.trace.events.phases import LOADER, of_loaders
from transformer_core.trace.events.process import ProcessTrace

_CLASSES = {
    "kernel": event_table.COMPUTE,
    "memcpy": event_table.MEMCPY,
    "memset": event_table.MEMSET,
    "graph": event_table.GRAPH,
}
_AS_THEY_ARE = {
    "context": "context",
    "stream": "stream",
    "t0_ns": "t0",
    "t1_ns": "t1",
    "kind": "kind",
    "name": "name",
    "copy_kind": "copy",
    "correlation": "correlation",
    "graph": "graph",
    "node": "node",
}
"""Columns that the reader has found, by theirs."""
_NO_ID = 0  # the id that profilers write where an event has no correlation id: CUPTI counts from 1


def device_rows(rows: ProcessRows) -> Iterator[tuple[str, Integers]]:
    """The columns of the device events of a process, one after the other: they are large, and none
    is kept that no other needs."""
    device, trace = rows.trace.device, rows.trace
    ids = device["correlation"]
    ids[ids == _NO_ID] = NULL
    thread, launched = first_launches(ids, trace.launches)
    del ids
    yield from (("thread", thread), ("launch_ns", launched))
    yield from ((name, device[source]) for name, source in _AS_THEY_ARE.items())
    numbers, place = distinct(device["device"])
    labels = [rows.names[f"{trace.accelerator}:{n}"] for n in numbers.tolist()]
    yield "device", np.array(labels, np.int64)[place]
    yield "layer", rows.layers.at(thread, launched)
    yield "source", rows.sources.at(thread, launched)
    operator = around(trace.operators, thread, launched)
    yield "operator", rows.of_operator("name", operator)
    yield "shapes", rows.shapes(operator)
    kernel = device["kind"] == rows.names["kernel"]
    talks = yield from _talks(rows, kernel, operator, thread, launched)
    yield "operator_class", _kernel_classes(rows, kernel, talks, operator)
    placed = rows.marks.placed(launched)
    apart = of_loaders(rows.marks, thread, kernel, operator >= 0, talks, placed["phase"])
    placed["phase"] = np.where(apart, rows.names[LOADER], placed["phase"])
    yield from placed.items()
    flops, traffic = rows.work(np.where(kernel & ~talks, operator, -1), device["t0"])
    yield from (("flops", flops), ("operator_bytes", traffic))


def _talks(
    rows: ProcessRows,
    kernel: NDArray[np.bool_],
    operator: Integers,
    thread: Integers,
    launched: Integers,
) -> Generator[tuple[str, Integers], None, NDArray[np.bool_]]:
    """Yields columns of the events' communication; returns a mask of the events that
    communicate."""
    annotation = around(rows.trace.collectives, thread, launched)
    collective = _collectives(rows, kernel, _directly(rows, annotation, operator))
    talks = collective != NULL
    yield "collective", collective
    del collective
    size, group_size, group = _messages(rows, talks, annotation)
    yield from (("bytes", size), ("group_size", group_size), ("group", group))
    kinds = mapped(rows.names, rows.trace.device["kind"], lambda kind: _CLASSES[kind])
    yield "class", np.where(talks, rows.names[event_table.COMMUNICATION], kinds)
    return talks


def _directly(rows: ProcessRows, annotation: Integers, operator: Integers) -> Integers:
    """The ranges of collectives around launches, but -1 where an operator inside the range
    launched: what it copies is no communication."""
    inside = (annotation >= 0) & (operator >= 0)
    begins = rows.trace.operators["t0"][operator[inside]]
    found = annotation.copy()
    found[inside] = np.where(
        begins > rows.trace.collectives["t0"][annotation[inside]], -1, annotation[inside]
    )
    return found


def _collectives(rows: ProcessRows, kernel: NDArray[np.bool_], annotation: Integers) -> Integers:
    """The collective of each kernel: by its name; where that hides it or is but a part of it, by
    what the trace says beside it, or by the range that launched it."""
    names, device = rows.names, rows.trace.device
    found = mapped(names, device["name"], collective_of)
    found[~kernel] = NULL
    said = mapped(names, device["collective"], collective_named)
    ranged = mapped(names, taken(rows.trace.collectives["name"], annotation), collective_named)
    for hint in (said, ranged):
        (owns, own_place), (hints, hint_place) = (
            distinct(np.where(kernel, one, NULL)) for one in (found, hint)
        )
        pairs, place = distinct(own_place * len(hints) + hint_place)
        better = [
            own
            if told == NULL
            else names[refined(None if own == NULL else names.texts[own], names.texts[told])]
            for own, told in zip(
                owns[pairs // len(hints)].tolist(), hints[pairs % len(hints)].tolist(), strict=True
            )
        ]
        found = np.array(better, np.int64)[place] if len(better) else found
    return found


def _messages(
    rows: ProcessRows, talks: NDArray[np.bool_], annotation: Integers
) -> tuple[Integers, Integers, Integers]:
    """Bytes, size of the group, and group: what the kernel says, else the range around it."""
    device = rows.trace.device
    size, group_size, group = (device[name].copy() for name in ("bytes", "group_size", "group"))
    for column, source in zip((size, group_size, group), rows.messages, strict=True):
        missing = talks & (column == NULL) & (annotation >= 0)
        column[missing] = source[annotation[missing]]
    group[talks] = rows.with_usual_group(group[talks])
    unknown = talks & (group_size == NULL)
    group_size[unknown] = rows.group_sizes(group[unknown])
    return size, group_size, group


def _kernel_classes(
    rows: ProcessRows, kernel: NDArray[np.bool_], talks: NDArray[np.bool_], operator: Integers
) -> Integers:
    """The operator class of each kernel: its operator's, else what its own name suggests."""
    names = rows.names
    found = rows.operator_classes(operator)
    unknown = (found == NULL) | (found == names[operator_classes.OTHER])
    guess = mapped(names, rows.trace.device["name"], kernel_class)
    found = np.where(unknown, guess, found)
    found = np.where(talks, names[operator_classes.COMMUNICATION], found)
    return np.where(kernel, found, NULL)


_CLOCK = ("t0_ns", "t1_ns", "launch_ns")


def events_of_process(trace: ProcessTrace) -> Events:
    """The rows of a process: its device events, or where it has none what its CPU did, and what its
    host marks."""
    rows = ProcessRows(trace)
    work = device_rows(rows) if len(trace.device) else host_rows(rows).items()
    parts = [_packed(trace, work)]
    parts += [_packed(trace, p(rows).items()) for p in (ranges, module_calls, waits, memory)]
    return joined([part for part in parts if len(part)] or parts[:1])


def _packed(trace: ProcessTrace, columns: Iterable[tuple[str, Integers]]) -> Events:
    found, count = Events(texts=trace.names.texts), 0
    for name, values in columns:
        if name in _CLOCK and trace.offset_ns:
            values = np.where(values == NULL, NULL, values + trace.offset_ns)
        found.columns.replace(name, values)
        count = len(values)
    for name in COLUMNS:
        if not len(found.columns[name]):
            usual = {"rank": 0, "pid": trace.pid}.get(name, NULL)
            found.columns.replace(name, np.full(count, usual, np.int64))
    return found
