"""The rows of one process that need no device: what its CPU did, and what its host marks.

On a CPU that is the self time of operators and the collectives beside them; steps, phases, calls of
modules, waits and memory are there with or without a GPU. Columns of texts hold numbers of names
until the table is made.
"""

import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events import event_table
from transformer_core.trace.events import operators as operator_classes
from transformer_core.trace.events.collectives import collective_named, message_bytes
from transformer_core.trace.events.columns import NULL, Integers, distinct, nulls
from transformer_core.trace.events.intervals import Innermost
from transformer_core.trace.events.joins import chosen, leaves, mapped, taken
from transformer_core.trace.events.phases import ALLOCATED_PREFIX, Forward, Labels, Marks, modules
from transformer_core.trace.events.process import ProcessTrace


class ProcessRows:
    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace
        self.names = trace.names
        self.marks = Marks(trace)
        forward = Forward(trace)
        self.layers = Labels(*modules(trace), forward)
        self.sources = Labels(trace.frames, trace.frames["name"], forward)

    @cached_property
    def messages(self) -> tuple[Integers, Integers, Integers]:
        """Bytes, size of the group and group of the collectives that have ranges; null where
        unknown."""
        rows, ranks = self.trace.collectives, self.trace.ranks
        group = self.with_usual_group(rows["group"])
        sizes = rows["group_size"].copy()
        unknown = sizes == NULL
        sizes[unknown] = self.group_sizes(group[unknown])
        if ranks is not None:
            sizes[(sizes == NULL) & (group == NULL)] = ranks
        found = [
            size
            if whole or size == NULL
            else message_bytes(
                collective_named(self.names.texts[name]), size, None, None if n == NULL else n
            )
            for size, whole, name, n in zip(
                rows["bytes"].tolist(),
                rows["whole"].tolist(),
                rows["name"].tolist(),
                sizes.tolist(),
                strict=True,
            )
        ]
        return np.array([NULL if v is None else v for v in found], np.int64), sizes, group

    def with_usual_group(self, group: Integers) -> Integers:
        """Groups, with that of the process where a collective does not name its own."""
        usual = self.trace.usual_group
        return group.copy() if usual is None else np.where(group == NULL, self.names[usual], group)

    def group_sizes(self, group: Integers) -> Integers:
        counts = [
            NULL if n == NULL or (text := self.names.texts[n])[:1] == "#" else text.count(",") + 1
            for n in group.tolist()
        ]
        return np.array(counts, np.int64)

    @cached_property
    def _kinds(self) -> dict[int, int]:
        """The classes of operators by the numbers of their names."""
        texts, names = self.names.texts, np.unique(self.trace.operators["name"]).tolist()
        return {n: self.names[operator_classes.operator_class(texts[n])] for n in names}

    def operator_classes(self, operator: Integers) -> Integers:
        """The class of the operator of each row; null for none (-1)."""
        return self.of_operator("name", operator, self._kinds)

    def of_operator(
        self, column: str, operator: Integers, made: Mapping[int, int] | None = None
    ) -> Integers:
        """A column of the operator of each row, or what is made of it; null for none (-1)."""
        found, some = nulls(len(operator)), operator >= 0
        values = self.trace.operators[column][operator[some]]
        if made is not None:
            present, place = distinct(values)
            values = np.array([made[n] for n in present.tolist()], np.int64)[place]
        found[some] = values
        return found

    def work(self, operator: Integers, t0: Integers) -> tuple[Integers, Integers]:
        """FLOPs and bytes of the operator of each row (-1 for none): all of them on its first
        row, 0 on the others, null where its shapes do not tell."""
        order = np.lexsort((t0, operator))
        order = order[operator[order] >= 0]
        order = order[self._leaves(operator[order])]
        chosen = operator[order]
        first = np.ones(len(chosen), np.bool_)
        first[1:] = chosen[1:] != chosen[:-1]
        calls = self.trace.operators["call"][chosen]
        columns = []
        for values in ([w.flops for w in self.trace.work], [w.bytes for w in self.trace.work]):
            known = np.array([NULL if v is None or v >= 2**62 else v for v in values], np.int64)
            of_call = known[calls] if len(chosen) else nulls(0)
            column = nulls(len(operator))
            column[order] = np.where(first | (of_call == NULL), of_call, 0)
            columns.append(column)
        return columns[0], columns[1]

    def shapes(self, operator: Integers) -> Integers:
        """The shapes of the inputs of the operator of each row, as text."""
        numbers = {k: self.names[t] if t else NULL for k, t in enumerate(self.trace.shapes)}
        return self.of_operator("call", operator, numbers)

    def _leaves(self, operator: Integers) -> NDArray[np.bool_]:
        # The arithmetic and traffic of all others are unknown.
        working = ("CONTRACTION", "NORMALIZATION", "ELEMENT_WISE")
        wanted = [self.names[getattr(operator_classes, name)] for name in working]
        present, place = np.unique(operator, return_inverse=True)
        return leaves(self.trace.operators, present, self._kinds, wanted)[place]


_NOTHING = np.empty(0, np.int64)


def host_rows(rows: ProcessRows) -> dict[str, Integers]:
    mine, talks, names = rows.trace.operators, rows.trace.collectives, rows.names
    sizes, group_sizes, groups = rows.messages
    t0, t1, operator = _self_times(rows)
    flops, traffic = rows.work(operator, t0)
    count, begin = len(talks), np.concatenate([t0, talks["t0"]])
    name = mine["name"][operator]
    thread = np.concatenate([mine["thread"][operator], talks["thread"]])

    def both(of_operators: str, of_collectives: str) -> Integers:
        numbers = names[of_operators], names[of_collectives]
        return np.repeat(np.array(numbers, np.int64), [len(t0), count])

    def beside(of_operators: Integers) -> Integers:
        return np.concatenate([of_operators, nulls(count)])

    def of_talks(values: Integers) -> Integers:
        return np.concatenate([nulls(len(t0)), values])

    return {
        "device": both("cpu", "cpu"),
        "stream": thread,
        "t0_ns": begin,
        "t1_ns": np.concatenate([t1, talks["t1"]]),
        "kind": both("operator", "operator"),
        "name": np.concatenate([name, talks["name"]]),
        "class": both(event_table.COMPUTE, event_table.COMMUNICATION),
        "collective": of_talks(mapped(names, talks["name"], collective_named)),
        "bytes": of_talks(sizes),
        "group_size": of_talks(group_sizes),
        "group": of_talks(groups),
        "thread": thread,
        "launch_ns": begin,
        "operator": beside(name),
        "shapes": beside(rows.shapes(operator)),
        "operator_class": np.concatenate(
            [rows.operator_classes(operator), np.full(count, names[operator_classes.COMMUNICATION])]
        ),
        "layer": rows.layers.at(thread, begin),
        "source": rows.sources.at(thread, begin),
        **rows.marks.placed(begin),
        "flops": beside(flops),
        "operator_bytes": beside(traffic),
    }


def _self_times(rows: ProcessRows) -> tuple[Integers, Integers, Integers]:
    """Begin, end and operator of every stretch in which a CPU computes."""
    mine, ranges = rows.trace.operators, rows.trace.ranges
    works = chosen(rows.names, mine["name"], _computes)
    talking = np.unique(rows.trace.collectives["thread"])
    parts = [(_NOTHING, _NOTHING, _NOTHING)]
    # What the thread of a collective copies is part of the collective.
    of_mine, of_marks = ([rows[name] for name in ("thread", "t0", "t1")] for rows in (mine, ranges))
    for thread in np.setdiff1d(of_mine[0], talking).tolist():
        place = np.flatnonzero(of_mine[0] == thread)
        marks = np.flatnonzero(of_marks[0] == thread)
        # A range inside an operator is Python again: its own time is not computation.
        t0, t1, owner = Innermost(
            np.concatenate([of_mine[1][place], of_marks[1][marks]]),
            np.concatenate([of_mine[2][place], of_marks[2][marks]]),
        ).stretches
        owned = owner < len(place)
        operator = place[owner[owned]]
        kept = works[operator]
        parts.append((t0[owned][kept], t1[owned][kept], operator[kept]))
    t0, t1, operator = (np.concatenate([part[k] for part in parts]) for k in range(3))
    return t0, t1, operator


def _computes(name: str) -> bool:
    """Whether the self time of an operator is computation: not waiting for others, nor the
    autograd engine's own."""
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
        "step": rows.marks.placed(start)["step"],
    }


def module_calls(rows: ProcessRows) -> dict[str, Integers]:
    """The calls of modules, with the bytes that each leaves allocated."""
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
    """The bytes that are allocated on each device, whenever they change."""
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
        "device": np.array(names, np.int64)[place] if len(t0) else nulls(0),
        "bytes": allocated,
    }


def _allocated(rows: ProcessRows) -> tuple[Integers, Integers, Integers]:
    """Times, numbers of devices and bytes: by the events of allocators, else by the marks of
    captures of the project itself."""
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
    values = np.array([told[number] for number in ranges["name"][mine].tolist()], np.int64)
    values = values.reshape(-1, 2)
    return ranges["t0"][mine], values[:, 0], values[:, 1]


def _left_allocated(rows: ProcessRows, t0: Integers, t1: Integers) -> Integers:
    """Bytes allocated at the ends over those at the begins, on the GPU that has most events of the
    allocator, or the CPU without one; null without such events."""
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
