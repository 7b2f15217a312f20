"""Rows of device events: each with its launch, and with what ran around that."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from transformer_core.profiling.events import event_table
from transformer_core.profiling.events.joins import around, first_launches
from transformer_core.profiling.events.loader_threads import of_loaders
from transformer_core.profiling.events.phases import LOADER
from transformer_core.profiling.events.texts import mapped, taken
from transformer_core.profiling.joining.process_rows import ProcessRows
from transformer_core.profiling.operators import kernel_classes, operator_classes
from transformer_core.profiling.operators.collective_names import (
    collective_named,
    collective_of,
    refined,
)
from transformer_core.profiling.readers.columns import NULL, Integers

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
}
"""Columns that the reader has found, by theirs."""


def device_rows(rows: ProcessRows) -> Iterator[tuple[str, Integers]]:
    """The columns of the device events of a process, one after the other, for they are large."""
    device, names, trace = rows.trace.device, rows.names, rows.trace
    thread, launched = first_launches(device["correlation"], trace.launches)
    operator = around(trace.operators, thread, launched)
    annotation = around(trace.collectives, thread, launched)
    kernel = device["kind"] == names["kernel"]
    collective = _collectives(rows, kernel, _directly(rows, annotation, operator))
    talks = collective != NULL
    size, group_size, group = _messages(rows, talks, annotation)
    flops, traffic = rows.work(np.where(kernel & ~talks, operator, -1), device["t0"])
    placed = rows.marks.placed(launched)
    apart = of_loaders(rows.marks, thread, kernel, operator >= 0, talks, placed["phase"], names)
    placed["phase"] = np.where(apart, names[LOADER], placed["phase"])
    yield from placed.items()
    yield from (("thread", thread), ("launch_ns", launched), ("collective", collective))
    yield from (("bytes", size), ("group_size", group_size), ("group", group))
    yield from (("flops", flops), ("operator_bytes", traffic))
    for name, source in _AS_THEY_ARE.items():
        yield name, device[source]
    yield "device", _devices(rows)
    kinds = mapped(names, device["kind"], lambda kind: _CLASSES[kind])
    yield "class", np.where(talks, names[event_table.COMMUNICATION], kinds)
    yield "operator", rows.operator_names(operator)
    yield "shapes", rows.shapes(operator)
    yield "operator_class", _kernel_classes(rows, kernel, talks, operator)
    yield "layer", rows.layers.at(thread, launched)


def _devices(rows: ProcessRows) -> Integers:
    numbers, place = np.unique(rows.trace.device["device"], return_inverse=True)
    return np.array([rows.names[f"cuda:{n}"] for n in numbers.tolist()], np.int64)[place]


def _directly(rows: ProcessRows, annotation: Integers, operator: Integers) -> Integers:
    """The ranges of collectives around launches, but -1 where an operator inside the range
    launched: what it copies is no communication."""
    inside = (annotation >= 0) & (operator >= 0)
    begins = rows.trace.operators.take("t0", operator[inside])
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
        both = np.stack([np.where(kernel, found, NULL), np.where(kernel, hint, NULL)], 1)
        pairs, place = np.unique(both, axis=0, return_inverse=True)
        better = [
            own
            if told == NULL
            else names[refined(None if own == NULL else names.texts[own], names.texts[told])]
            for own, told in pairs.tolist()
        ]
        found = np.array(better, np.int64)[place.reshape(-1)] if len(better) else found
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
    guess = mapped(names, rows.trace.device["name"], kernel_classes.kernel_class)
    found = np.where(unknown, guess, found)
    found = np.where(talks, names[operator_classes.COMMUNICATION], found)
    return np.where(kernel, found, NULL)
