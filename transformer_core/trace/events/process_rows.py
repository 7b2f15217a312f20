"""The rows of one process in the event table: device events, each with its launch and the operator,
phase and module around that launch; or, without a GPU, the self time of operators and the
collectives of the CPU; and the marks of the host: steps, phases, modules, waits, memory.

A kernel names neither its operator nor its phase, but its launch tells both. Correlation ids join
kernels and launches within a process. The operator is the innermost one around the launch on the
launching thread; the phase is that of any thread, because PyTorch launches backward from its own
threads. Columns of texts hold numbers of names.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events import event_table
from transformer_core.trace.events import operators as operator_classes
from transformer_core.trace.events.collectives import (
    collective_named,
    collective_of,
    message_bytes,
    refined,
)
from transformer_core.trace.events.columns import (
    NULL,
    Integers,
    around,
    chosen,
    distinct,
    first_launches,
    leaves,
    mapped,
    nulls,
    or_null,
    taken,
)
from transformer_core.trace.events.event_table import COLUMNS, Events, joined
from transformer_core.trace.events.intervals import Innermost
from transformer_core.trace.events.phases import (
    ALLOCATED_PREFIX,
    LOADER,
    Labels,
    Marks,
    forward_operators,
    modules,
    of_loaders,
)
from transformer_core.trace.events.process import ProcessTrace, ranks_of


class ProcessRows:
    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace
        self.names = trace.names
        self.marks = Marks(trace)
        forward = cache(partial(forward_operators, trace))
        self.layers = Labels(*modules(trace), forward)
        self.sources = Labels(trace.frames, trace.frames["name"], forward)

    @cached_property
    def messages(self) -> tuple[Integers, Integers, Integers]:
        """Bytes, group size and group of the collectives that have ranges; null if unknown."""
        rows, ranks = self.trace.collectives, self.trace.ranks
        group = self.with_usual_group(rows["group"])
        sizes = np.where(rows["group_size"] == NULL, self.group_sizes(group), rows["group_size"])
        if ranks is not None:
            sizes[(sizes == NULL) & (group == NULL)] = ranks
        found = [
            size
            if whole or size == NULL
            else or_null(
                message_bytes(
                    collective_named(self.names.texts[name]), size, None, None if n == NULL else n
                )
            )
            for size, whole, name, n in zip(
                *(rows[column].tolist() for column in ("bytes", "whole", "name")),
                sizes.tolist(),
                strict=True,
            )
        ]
        return np.array(found, np.int64), sizes, group

    def with_usual_group(self, group: Integers) -> Integers:
        """``group``, with the usual group of the process for collectives that name none."""
        usual = self.trace.usual_group
        return np.where(group == NULL, NULL if usual is None else self.names[usual], group)

    def group_sizes(self, group: Integers) -> Integers:
        present, place = distinct(group)
        ranks = (None if n == NULL else ranks_of(self.names.texts[n]) for n in present.tolist())
        counts = [NULL if known is None else len(known) for known in ranks]
        return np.array(counts, np.int64)[place]

    @cached_property
    def _classes(self) -> Integers:
        """The class of each operator of the process."""
        names = self.trace.operators["name"]
        return mapped(self.names, names, operator_classes.operator_class)

    def operator_classes(self, operator: Integers) -> Integers:
        """The class of the operator of each row; null for none (-1)."""
        return taken(self._classes, operator)

    def work(self, operator: Integers, t0: Integers, t1: Integers) -> tuple[Integers, Integers]:
        """FLOPs and bytes of the operator of each row (-1 for none): the full amount on its longest
        row, 0 on its others, null if its shapes do not determine it."""
        order = np.lexsort((t0, t0 - t1, operator))
        order = order[operator[order] >= 0]
        wanted = [self.names[name] for name in operator_classes.COUNTED]
        order = order[leaves(self.trace.operators, self._classes, wanted)[operator[order]]]
        chosen = operator[order]
        first = np.ones(len(chosen), np.bool_)
        first[1:] = chosen[1:] != chosen[:-1]
        calls = self.trace.operators["call"][chosen]
        columns = nulls(2 * len(operator)).reshape(2, -1)
        amounts = zip(*((work.flops, work.bytes) for work in self.trace.work), strict=True)
        for column, values in zip(columns, amounts, strict=True):
            known = np.array([NULL if v is None or v >= 2**53 else v for v in values], np.int64)
            column[order] = np.where(first | (known[calls] == NULL), known[calls], 0)
        return columns[0], columns[1]

    def shapes(self, operator: Integers) -> Integers:
        """The shapes of the inputs of the operator of each row, as text."""
        numbers = np.array([self.names[t] if t else NULL for t in self.trace.shapes], np.int64)
        return taken(numbers, taken(self.trace.operators["call"], operator))


_SAME = ("context", "stream", "kind", "name", "correlation", "graph", "node")
_COPIED = {name: name for name in _SAME} | {"t0_ns": "t0", "t1_ns": "t1", "copy_kind": "copy"}
"""Columns copied unchanged, and their names in the reader's table."""
_NO_ID = 0  # written by profilers for an event without a correlation id: CUPTI counts from 1


def device_rows(rows: ProcessRows) -> Iterator[tuple[str, Integers]]:
    """Yields the columns of the device events one by one: they are large, so each can be freed as
    soon as no other needs it."""
    device, trace = rows.trace.device, rows.trace
    ids = device["correlation"]
    ids[ids == _NO_ID] = NULL
    thread, launched = first_launches(ids, trace.launches)
    del ids
    yield from (("thread", thread), ("launch_ns", launched))
    yield from ((name, device[source]) for name, source in _COPIED.items())
    numbers, place = distinct(device["device"])
    labels = [rows.names[f"{trace.accelerator}:{n}"] for n in numbers.tolist()]
    yield "device", np.array(labels, np.int64)[place]
    yield "layer", rows.layers.at(thread, launched)
    yield "source", rows.sources.at(thread, launched)
    operator = around(trace.operators, thread, launched)
    yield "operator", taken(trace.operators["name"], operator)
    yield "shapes", rows.shapes(operator)
    kernel = device["kind"] == rows.names["kernel"]
    talks = yield from _talks(rows, kernel, operator, thread, launched)
    yield "operator_class", _kernel_classes(rows, kernel, talks, operator)
    placed = rows.marks.placed(launched)
    apart = of_loaders(rows.marks, thread, kernel, (operator >= 0) | talks, placed["phase"])
    placed["phase"] = np.where(apart, rows.names[LOADER], placed["phase"])
    yield from placed.items()
    flops, traffic = rows.work(np.where(kernel & ~talks, operator, -1), device["t0"], device["t1"])
    yield from (("flops", flops), ("operator_bytes", traffic))


def _talks(
    rows: ProcessRows,
    kernel: NDArray[np.bool_],
    operator: Integers,
    thread: Integers,
    launched: Integers,
) -> Generator[tuple[str, Integers], None, NDArray[np.bool_]]:
    """Yields the columns about communication; returns which events communicate."""
    annotation = around(rows.trace.collectives, thread, launched)
    collective = _collectives(rows, kernel, _directly(rows, annotation, operator))
    talks = collective != NULL
    yield "collective", collective
    del collective
    size, group_size, group = _messages(rows, talks, annotation)
    yield from (("bytes", size), ("group_size", group_size), ("group", group))
    # The classes of copies, memory sets and graphs are named like their kinds.
    kinds = np.where(kernel, rows.names[event_table.COMPUTE], rows.trace.device["kind"])
    yield "class", np.where(talks, rows.names[event_table.COMMUNICATION], kinds)
    return talks


def _directly(rows: ProcessRows, annotation: Integers, operator: Integers) -> Integers:
    """The ranges of collectives around launches, but -1 if an operator inside the range launched
    the event: its copies are not communication."""
    begins = taken(rows.trace.operators["t0"], operator)
    return np.where(begins > taken(rows.trace.collectives["t0"], annotation), -1, annotation)


def _collectives(rows: ProcessRows, kernel: NDArray[np.bool_], annotation: Integers) -> Integers:
    """The collective of each kernel: from its name or, if that is not specific, from the arguments of
    the event or the range that launched it."""
    names, device = rows.names, rows.trace.device
    found = mapped(names, device["name"], collective_of)
    found[~kernel] = NULL
    ranged = taken(rows.trace.collectives["name"], annotation)
    for source in (device["collective"], ranged):
        hints = np.where(kernel, mapped(names, source, collective_named), NULL)
        present, _ = distinct(hints)
        for hint in present[present != NULL].tolist():
            mine = np.flatnonzero(hints == hint)
            better = mapped(names, found[mine], partial(refined, told=names.texts[hint]))
            found[mine] = np.where(better == NULL, hint, better)
    return found


def _messages(
    rows: ProcessRows, talks: NDArray[np.bool_], annotation: Integers
) -> tuple[Integers, Integers, Integers]:
    """Bytes, group size and group: from the kernel, else from the range around its launch."""
    device = rows.trace.device
    size, group_size, group = (device[name] for name in ("bytes", "group_size", "group"))
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
    """The operator class of each kernel: that of its operator, else a guess from its own name."""
    names = rows.names
    found = rows.operator_classes(operator)
    unknown = (found == NULL) | (found == names[operator_classes.OTHER])
    guess = mapped(names, rows.trace.device["name"], operator_classes.kernel_class)
    found = np.where(unknown, guess, found)
    found = np.where(talks, names[operator_classes.COMMUNICATION], found)
    return np.where(kernel, found, NULL)


def host_rows(rows: ProcessRows) -> dict[str, Integers]:
    mine, talks, names = rows.trace.operators, rows.trace.collectives, rows.names
    messages = zip(("bytes", "group_size", "group"), rows.messages, strict=True)
    ran = _run_collectives(rows)
    t0, t1, operator = _self_times(rows, ran)
    begin = np.concatenate([t0, talks["t0"][ran]])
    name, thread = (
        np.concatenate([mine[column][operator], talks[column][ran]])
        for column in ("name", "thread")
    )
    # Each row is either of an operator or of a collective; the place of the other is -1.
    operator = np.concatenate([operator, np.full(len(ran), -1)])
    collective = np.concatenate([np.full(len(t0), -1), ran])
    works = operator >= 0
    end = np.concatenate([t1, talks["t1"][ran]])
    flops, traffic = rows.work(operator, begin, end)
    return {
        "device": np.full(len(begin), names["cpu"]),
        "stream": thread,
        "t0_ns": begin,
        "t1_ns": end,
        "kind": np.full(len(begin), names["operator"]),
        "name": name,
        "class": np.where(works, names[event_table.COMPUTE], names[event_table.COMMUNICATION]),
        "collective": taken(mapped(names, talks["name"], collective_named), collective),
        **{column: taken(values, collective) for column, values in messages},
        "thread": thread,
        "launch_ns": begin,
        "operator": taken(mine["name"], operator),
        "shapes": rows.shapes(operator),
        "operator_class": np.where(
            works, rows.operator_classes(operator), names[operator_classes.COMMUNICATION]
        ),
        "layer": rows.layers.at(thread, begin),
        "source": rows.sources.at(thread, begin),
        **rows.marks.placed(begin),
        "flops": flops,
        "operator_bytes": traffic,
    }


def _run_collectives(rows: ProcessRows) -> Integers:
    """The places of the collectives that a CPU ran; PyTorch's descriptions of others, on the thread
    that computes, take only the time of a call."""
    return np.flatnonzero(rows.trace.collectives["whole"] == 0)


def _self_times(rows: ProcessRows, ran: Integers) -> tuple[Integers, Integers, Integers]:
    """Begin, end and operator of every stretch in which a CPU computes, but on the threads of the
    collectives that ``ran``."""
    mine, ranges = rows.trace.operators, rows.trace.ranges
    works = chosen(rows.names, mine["name"], _computes)
    talking = np.unique(rows.trace.collectives["thread"][ran])
    parts = [(nulls(0),) * 3]
    # Copies on the thread of a collective are part of the collective.
    of_mine, of_marks = ([rows[name] for name in ("thread", "t0", "t1")] for rows in (mine, ranges))
    for thread in np.setdiff1d(of_mine[0], talking).tolist():
        place = np.flatnonzero(of_mine[0] == thread)
        marks = np.flatnonzero(of_marks[0] == thread)
        # A range inside an operator means that Python runs again: its own time is not computation.
        t0, t1, owner = Innermost(
            np.concatenate([of_mine[1][place], of_marks[1][marks]]),
            np.concatenate([of_mine[2][place], of_marks[2][marks]]),
        ).stretches
        owned = owner < len(place)
        operator = place[owner[owned]]
        kept = works[operator]
        parts.append((t0[owned][kept], t1[owned][kept], operator[kept]))
    t0, t1, operator = map(np.concatenate, zip(*parts, strict=True))
    return t0, t1, operator


def _computes(name: str) -> bool:
    """Whether the self time of an operator is computation, neither waiting for other ranks nor
    overhead of the autograd engine."""
    if "Compiled" in name or operator_classes.COMPILED.match(name):
        return True
    if "::" not in name or operator_classes.operator_class(name) == operator_classes.COMMUNICATION:
        return False
    return not name.startswith(("autograd::", "torch::autograd::"))


_MARK = re.compile(rf"{ALLOCATED_PREFIX}([0-9]{{1,9}}):([0-9]{{1,18}})")
_CPU = -1  # the allocator of the host, by its number in a trace


def ranges(rows: ProcessRows) -> dict[str, Integers]:
    names, t0, t1, _ = rows.marks.phases
    steps, begins, ends, _ = rows.marks.steps
    start = np.concatenate([t0, begins])
    return {
        "t0_ns": start,
        "t1_ns": np.concatenate([t1, ends]),
        "kind": np.full(len(start), rows.names["range"]),
        "name": np.concatenate([names, steps]),
        "phase": np.concatenate([names, nulls(len(steps))]),
        "step": np.concatenate([rows.marks.placed(t0)["step"], np.arange(len(begins))]),
    }


def module_calls(rows: ProcessRows) -> dict[str, Integers]:
    """The calls of modules, with the bytes that each call leaves allocated."""
    calls, paths = rows.layers.rows, rows.layers.labels
    return {
        "t0_ns": calls["t0"],
        "t1_ns": calls["t1"],
        "kind": np.full(len(calls), rows.names["module"]),
        "name": paths,
        "thread": calls["thread"],
        "layer": paths,
        "bytes": _left_allocated(rows, calls["t0"], calls["t1"]),
        **rows.marks.placed(calls["t0"]),
    }


def waits(rows: ProcessRows) -> dict[str, Integers]:
    found = rows.trace.waits
    return {
        "t0_ns": found["t0"],
        "t1_ns": found["t1"],
        "kind": np.full(len(found), rows.names["wait"]),
        "thread": found["thread"],
    }


def memory(rows: ProcessRows) -> dict[str, Integers]:
    """The bytes allocated on each device, at every change."""
    t0, device, allocated = _allocated(rows)
    numbers, place = np.unique(device, return_inverse=True)
    names = [
        rows.names["cpu" if n == _CPU else f"{rows.trace.accelerator}:{n}"]
        for n in numbers.tolist()
    ]
    return {
        "t0_ns": t0,
        "t1_ns": t0,
        "kind": np.full(len(t0), rows.names["memory"]),
        "device": np.array(names, np.int64)[place],
        "bytes": allocated,
    }


def _allocated(rows: ProcessRows) -> tuple[Integers, Integers, Integers]:
    """Times, device numbers and bytes: from the events of allocators, else from the marks that the
    project sets in its own captures."""
    found = rows.trace.memory
    if len(found):
        return found["t0"], found["device"], found["allocated"]
    ranges, texts = rows.trace.ranges, rows.names.texts
    told = {
        number: tuple(map(int, match.groups()))
        for number in np.unique(ranges["name"]).tolist()
        if (match := _MARK.fullmatch(texts[number]))
    }
    mine = np.flatnonzero(np.isin(ranges["name"], list(told)))
    pairs = np.array([told[n] for n in ranges["name"][mine].tolist()], np.int64).reshape(-1, 2)
    return ranges["t0"][mine], pairs[:, 0], pairs[:, 1]


def _left_allocated(rows: ProcessRows, t0: Integers, t1: Integers) -> Integers:
    """How many more bytes are allocated at each end than at the begin, on the GPU with the most
    allocator events, or on the CPU if there is no GPU; null without such events."""
    times, device, sizes = _allocated(rows)
    if not len(times):
        return nulls(len(t0))
    devices, counts = np.unique(device, return_counts=True)
    chosen = devices[np.argmax(np.where(devices == _CPU, 0, counts))]
    mine = np.flatnonzero(device == chosen)
    mine = mine[np.argsort(times[mine], kind="stable")]
    clock, allocated = times[mine], sizes[mine]
    before, after = (
        taken(allocated, np.searchsorted(clock, edges, side="right") - 1) for edges in (t0, t1)
    )
    # Unknown before the first event: the memory may have been allocated long before.
    return np.where(before == NULL, NULL, after - before)


_CLOCK = ("t0_ns", "t1_ns", "launch_ns")


def events_of_process(trace: ProcessTrace) -> Events:
    """The rows of a process: its device events or, without any, the work of its CPU; and the marks
    of its host."""
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
