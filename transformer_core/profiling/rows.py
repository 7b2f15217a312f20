"""From what a reader found in a process to rows of the event table.

A kernel says neither its operator nor its phase; its launch does. Correlation ids join the two
within a process, the operator is the innermost one around the launch on the launching thread, and
the phase is that of any thread, because PyTorch launches backward from threads of its own.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from transformer_core.profiling import events, operators, phases
from transformer_core.profiling.collectives import (
    OTHER,
    collective_named,
    collective_of,
    message_bytes,
)
from transformer_core.profiling.columns import NULL, Columns, Integers, nulls
from transformer_core.profiling.intervals import Segments, innermost
from transformer_core.profiling.trace import ProcessTrace

_NOTHING = np.empty(0, np.int64)
_CLOCK = ("t0_ns", "t1_ns", "launch_ns")
_NAMED = tuple(c.name for c in events.SCHEMA if pa.types.is_dictionary(c.type))


def table(trace: ProcessTrace, rank: int) -> pa.Table:
    """The rows of a process as :data:`events.SCHEMA`: its device events, or where it has none what
    its CPU did, and the ranges of its steps and phases."""
    rows = _Rows(trace)
    work = rows.of_devices() if len(trace.device) else rows.of_host()
    return pa.concat_tables([rows.finished(part, rank) for part in (work, rows.of_ranges())])


class _Rows:
    """The joins of one process. Columns of texts hold numbers of names until the end."""

    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace
        self.texts = trace.names.texts
        self.id = trace.names.id

    def of_devices(self) -> dict[str, Integers]:
        device = self.trace.device
        thread, launched = self._launches()
        operator = self._around(self.trace.operators, thread, launched)
        annotation = self._around(self.trace.collectives, thread, launched)
        kernel = device["kind"] == self.id("kernel")
        collective = self._collectives(kernel, self._directly(annotation, operator))
        talks = collective != NULL
        size, group = device["bytes"].copy(), device["group"].copy()
        sizes, groups = self._messages
        for column, source in ((size, sizes), (group, groups)):
            missing = talks & (column == NULL) & (annotation >= 0)
            column[missing] = source[annotation[missing]]
        flops, traffic = self._work(np.where(kernel & ~talks, operator, -1), device["t0"])
        kinds = {
            "kernel": events.COMPUTE,
            "memcpy": events.MEMCPY,
            "memset": events.MEMSET,
            "graph": events.GRAPH,
        }
        return {
            "device": self._mapped(device["device"], lambda index: f"cuda:{index}"),
            "context": device["context"],
            "stream": device["stream"],
            "t0_ns": device["t0"],
            "t1_ns": device["t1"],
            "kind": device["kind"],
            "name": device["name"],
            "class": np.where(
                talks,
                self.id(events.COMMUNICATION),
                self._mapped(device["kind"], lambda kind: kinds[self.texts[kind]]),
            ),
            "collective": collective,
            "copy_kind": device["copy"],
            "bytes": size,
            "group_size": group,
            "correlation": device["correlation"],
            "thread": thread,
            "launch_ns": launched,
            "operator": self._taken(self.trace.operators["name"], operator),
            "operator_class": self._kernel_classes(kernel, talks, operator),
            **self._placed(launched),
            "flops": flops,
            "operator_bytes": traffic,
        }

    def of_host(self) -> dict[str, Integers]:
        """What a CPU did: the self time of operators, and the collectives beside them."""
        mine, talks = self.trace.operators, self.trace.collectives
        sizes, groups = self._messages
        t0, t1, operator = self._self_times()
        flops, traffic = self._work(operator, t0)
        count, begin = len(talks), np.concatenate([t0, talks["t0"]])
        stream = np.concatenate([mine["thread"][operator], talks["thread"]])

        def both(of_operators: str, of_collectives: str) -> Integers:
            numbers = self.id(of_operators), self.id(of_collectives)
            return np.repeat(np.array(numbers, np.int64), [len(t0), count])

        return {
            "device": both("cpu", "cpu"),
            "stream": stream,
            "t0_ns": begin,
            "t1_ns": np.concatenate([t1, talks["t1"]]),
            "kind": both("operator", "operator"),
            "name": np.concatenate([mine["name"][operator], talks["name"]]),
            "class": both(events.COMPUTE, events.COMMUNICATION),
            "collective": np.concatenate(
                [
                    nulls(len(t0)),
                    self._mapped(talks["name"], lambda name: collective_named(self.texts[name])),
                ]
            ),
            "bytes": np.concatenate([nulls(len(t0)), sizes]),
            "group_size": np.concatenate([nulls(len(t0)), groups]),
            "thread": stream,
            "launch_ns": begin,
            "operator": np.concatenate([mine["name"][operator], nulls(count)]),
            "operator_class": np.concatenate(
                [
                    self._operator_classes[operator],
                    np.full(count, self.id(operators.COMMUNICATION)),
                ]
            ),
            **self._placed(begin),
            "flops": np.concatenate([flops, nulls(count)]),
            "operator_bytes": np.concatenate([traffic, nulls(count)]),
        }

    def of_ranges(self) -> dict[str, Integers]:
        names, t0, t1 = self._marks(steps=False)
        steps, begins, ends = self._marks(steps=True)
        start = np.concatenate([t0, begins])
        return {
            "t0_ns": start,
            "t1_ns": np.concatenate([t1, ends]),
            "kind": np.full(len(start), self.id("range")),
            "name": np.concatenate([names, steps]),
            "phase": np.concatenate([names, nulls(len(steps))]),
            "step": self._placed(start)["step"],
        }

    # Joins

    def _launches(self) -> tuple[Integers, Integers]:
        """Thread and time of the launch of each device event; null where the trace lacks it."""
        wanted, launches = self.trace.device["correlation"], self.trace.launches
        order = np.lexsort((launches["t0"], launches["correlation"]))
        known = launches["correlation"][order]
        thread, time = nulls(len(wanted)), nulls(len(wanted))
        if len(known):
            # The first of several calls with one id: a call of the driver lies in the runtime's.
            place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            found = (known[place] == wanted) & (wanted != NULL)
            thread[found] = launches["thread"][order][place[found]]
            time[found] = launches["t0"][order][place[found]]
        return thread, time

    @staticmethod
    def _around(rows: Columns, thread: Integers, time: Integers) -> Integers:
        """The innermost of ``rows`` around each time on its thread; -1 where there is none."""
        found = np.full(len(time), -1, np.int64)
        for number in np.unique(thread[thread != NULL]).tolist():
            mine = np.flatnonzero(rows["thread"] == number)
            asked = np.flatnonzero(thread == number)
            owner = innermost(rows["t0"][mine], rows["t1"][mine]).at(time[asked])
            found[asked[owner >= 0]] = mine[owner[owner >= 0]]
        return found

    def _directly(self, annotation: Integers, operator: Integers) -> Integers:
        """The ranges of collectives around launches, but -1 where an operator inside the range
        launched: what it copies is no communication."""
        inside = (annotation >= 0) & (operator >= 0)
        begins = self.trace.operators["t0"][operator[inside]]
        found = annotation.copy()
        found[inside] = np.where(
            begins > self.trace.collectives["t0"][annotation[inside]], -1, annotation[inside]
        )
        return found

    def _collectives(self, kernel: NDArray[np.bool_], annotation: Integers) -> Integers:
        """The collective of each kernel: by its name; where that hides it, by what the trace says
        beside it, or by the range that launched it."""
        device = self.trace.device
        by_name = self._mapped(device["name"], lambda name: collective_of(self.texts[name]))
        by_name[~kernel] = NULL
        said = self._mapped(device["collective"], lambda name: collective_named(self.texts[name]))
        ranged = self._mapped(
            self._taken(self.trace.collectives["name"], annotation),
            lambda name: collective_named(self.texts[name]),
        )
        found = by_name
        for hint in (said, ranged):
            hidden = kernel & ((found == NULL) | (found == self.id(OTHER))) & (hint != NULL)
            found = np.where(hidden, hint, found)
        return found

    @cached_property
    def _messages(self) -> tuple[Integers, Integers]:
        """Bytes and ranks of the collectives that have ranges; null where unknown."""
        rows, ranks = self.trace.collectives, self.trace.ranks
        groups = np.where(rows["group"] == NULL, NULL if ranks is None else ranks, rows["group"])
        sizes = [
            size
            if whole or size == NULL
            else message_bytes(
                collective_named(self.texts[name]), size, None, None if group == NULL else group
            )
            for size, whole, name, group in zip(
                rows["bytes"].tolist(),
                rows["whole"].tolist(),
                rows["name"].tolist(),
                groups.tolist(),
                strict=True,
            )
        ]
        return np.array([NULL if size is None else size for size in sizes], np.int64), groups

    def _kernel_classes(
        self, kernel: NDArray[np.bool_], talks: NDArray[np.bool_], operator: Integers
    ) -> Integers:
        """The operator class of each kernel: its operator's, else what its own name suggests."""
        found = self._taken(self._operator_classes, operator)
        unknown = (found == NULL) | (found == self.id(operators.OTHER))
        guess = self._mapped(
            self.trace.device["name"], lambda name: operators.kernel_class(self.texts[name])
        )
        found = np.where(unknown, guess, found)
        found = np.where(talks, self.id(operators.COMMUNICATION), found)
        return np.where(kernel, found, NULL)

    @cached_property
    def _operator_classes(self) -> Integers:
        return self._mapped(
            self.trace.operators["name"], lambda name: operators.operator_class(self.texts[name])
        )

    @cached_property
    def _leaves(self) -> NDArray[np.bool_]:
        """The operators that do their work themselves: no operator of their class runs inside."""
        mine = self.trace.operators
        bits = 1 << np.searchsorted(np.unique(self._operator_classes), self._operator_classes)
        leaves = np.ones(len(mine), np.bool_)
        for thread in np.unique(mine["thread"]).tolist():
            place = np.flatnonzero(mine["thread"] == thread)
            t0, t1 = mine["t0"][place], mine["t1"][place]
            parents, own = innermost(t0, t1).parent.tolist(), bits[place].tolist()
            inside = [0] * len(place)
            for index in np.lexsort((-t1, t0))[::-1].tolist():  # from the inside out
                if parents[index] >= 0:
                    inside[parents[index]] |= inside[index] | own[index]
            leaves[place] = (np.array(inside, np.int64) & bits[place]) == 0
        return leaves

    def _work(self, operator: Integers, t0: Integers) -> tuple[Integers, Integers]:
        """FLOPs and bytes of the operator of each row (-1 for none): all of them on its first
        row, 0 on the others, null where its shapes do not tell."""
        work = self.trace.work
        order = np.lexsort((t0, operator))
        order = order[operator[order] >= 0]
        order = order[self._leaves[operator[order]]]
        chosen = operator[order]
        first = np.ones(len(chosen), np.bool_)
        first[1:] = chosen[1:] != chosen[:-1]
        calls = self.trace.operators["call"][chosen]
        columns = []
        for values in ([w.flops for w in work], [w.bytes for w in work]):
            of_call = np.array([NULL if v is None else v for v in values], np.int64)[calls]
            column = nulls(len(operator))
            column[order] = np.where(first | (of_call == NULL), of_call, 0)
            columns.append(column)
        return columns[0], columns[1]

    def _self_times(self) -> tuple[Integers, Integers, Integers]:
        """Begin, end and operator of every stretch in which a CPU computes."""
        mine, ranges = self.trace.operators, self.trace.ranges
        works = self._mapped(mine["name"], lambda name: str(_computes(self.texts[name])))
        works = works == self.id("True")
        talking = np.unique(self.trace.collectives["thread"])
        parts = [(_NOTHING, _NOTHING, _NOTHING)]
        # What the thread of a collective copies is part of the collective.
        for thread in np.setdiff1d(mine["thread"], talking).tolist():
            place = np.flatnonzero(mine["thread"] == thread)
            marks = np.flatnonzero(ranges["thread"] == thread)
            # A range inside an operator is Python again: its own time is not computation.
            cut = innermost(
                np.concatenate([mine["t0"][place], ranges["t0"][marks]]),
                np.concatenate([mine["t1"][place], ranges["t1"][marks]]),
            )
            owned = cut.owner < len(place)
            operator = place[cut.owner[owned]]
            kept = works[operator]
            parts.append((cut.t0[owned][kept], cut.t1[owned][kept], operator[kept]))
        t0, t1, operator = (np.concatenate([part[k] for part in parts]) for k in range(3))
        return t0, t1, operator

    # Steps and phases

    def _marks(self, steps: bool) -> tuple[Integers, Integers, Integers]:
        """Names, begins and ends of the ranges of steps, or of phases, in order of time."""
        names, t0, t1 = [_NOTHING], [_NOTHING], [_NOTHING]
        for rows in (self.trace.ranges, self.trace.operators):
            found = {
                number: phase
                for number in np.unique(rows["name"]).tolist()
                if (phase := phases.phase_of(self.texts[number]))
                and (phase == phases.STEP) == steps
            }
            # What the program marks itself counts; what PyTorch marks only where it does not.
            own = {n: p for n, p in found.items() if self.texts[n] == phases.label(p)}
            chosen = np.isin(rows["name"], list(own or found))
            names.append(self._mapped(rows["name"][chosen], found.get))
            t0.append(rows["t0"][chosen])
            t1.append(rows["t1"][chosen])
            if own or (steps and found):
                break
        begins = np.concatenate(t0)
        order = np.argsort(begins, kind="stable")
        return np.concatenate(names)[order], begins[order], np.concatenate(t1)[order]

    @cached_property
    def _steps(self) -> Segments:
        _, t0, t1 = self._marks(steps=True)
        return innermost(t0, t1)

    @cached_property
    def _phases(self) -> tuple[Integers, Segments]:
        names, t0, t1 = self._marks(steps=False)
        return names, innermost(t0, t1)

    def _placed(self, times: Integers) -> dict[str, Integers]:
        """Phase and step around each time, of whatever thread."""
        names, segments = self._phases
        step = self._steps.at(times)
        return {
            "phase": self._taken(names, segments.at(times)),
            "step": np.where(step >= 0, step, NULL),
        }

    # Columns

    @staticmethod
    def _taken(values: Integers, places: Integers) -> Integers:
        """``values`` at ``places``; null at -1."""
        found = nulls(len(places))
        found[places >= 0] = values[places[places >= 0]]
        return found

    def _mapped(self, values: Integers, name: Callable[[int], str | None]) -> Integers:
        """The number of the name that a function gives each value; null stays null."""
        distinct, place = np.unique(values, return_inverse=True)
        numbers = [None if value == NULL else name(value) for value in distinct.tolist()]
        ids = [NULL if text is None else self.id(text) for text in numbers]
        return np.array(ids, np.int64)[place] if ids else _NOTHING

    def finished(self, rows: Mapping[str, Integers], rank: int) -> pa.Table:
        """Rows as a table with all columns of the schema."""
        count = len(rows["t0_ns"])
        dictionary = pa.array(self.texts, pa.string())
        rows = {**rows, "rank": np.full(count, rank), "pid": np.full(count, self.trace.pid)}
        arrays = []
        for column in events.SCHEMA:
            values = rows.get(column.name)
            if values is None:
                arrays.append(pa.nulls(count, column.type))
                continue
            absent = values == NULL
            if column.name in _CLOCK:
                values = np.where(absent, NULL, values + self.trace.offset_ns)
            if column.name in _NAMED:
                indices = pa.array(np.where(absent, 0, values).astype(np.int32), mask=absent)
                arrays.append(pa.DictionaryArray.from_arrays(indices, dictionary))
            else:
                arrays.append(pa.array(values, mask=absent).cast(column.type))
        return pa.Table.from_arrays(arrays, schema=events.SCHEMA)


def _computes(name: str) -> bool:
    """Whether the self time of an operator is computation: not waiting for others, nor the
    autograd engine's own."""
    if "Compiled" in name:
        return True
    if "::" not in name or operators.operator_class(name) == operators.COMMUNICATION:
        return False
    return not name.startswith(("autograd::", "torch::autograd::"))
