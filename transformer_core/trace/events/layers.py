"""The module that an operator or kernel belongs to, as a path, from ranges around its launch.

The project's own ranges name the path; the profiler's ``nn.Module: Linear_0`` and ranges that other
programs set make one by lying in each other. What backward launches belongs to the module of the
operator in forward that autograd made it for, which has the same sequence number.
"""

from functools import cached_property

import numpy as np

from transformer_core.trace.events.columns import NULL, Columns, Integers, nulls
from transformer_core.trace.events.intervals import innermost
from transformer_core.trace.events.joins import around, chosen, taken
from transformer_core.trace.events.phases import LAYER_PREFIX, phase_of
from transformer_core.trace.events.process import ProcessTrace

MODULE = "nn.Module: "
"""Prefix of the profiler's own ranges of modules."""

SEPARATOR = "/"


class Layers:
    """Paths of modules by thread and time."""

    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace

    def at(self, thread: Integers, time: Integers) -> Integers:
        """The number of the path at each launch; null where there is none."""
        rows, paths = self.modules
        if not len(rows):
            return nulls(len(time))
        found = taken(paths, around(rows, thread, time))
        missing = np.flatnonzero(found == NULL)
        found[missing] = self._of_forward(thread[missing], time[missing])
        return found

    def _of_forward(self, thread: Integers, time: Integers) -> Integers:
        """The path of the operator in forward that a launch in backward goes back to."""
        rows, first = self._numbered
        if not len(rows):
            return nulls(len(time))
        return taken(self._forward_paths, taken(first, around(rows, thread, time)).clip(-1))

    @cached_property
    def _numbered(self) -> tuple[Columns, Integers]:
        """Operators with sequence numbers, and of each the first operator with its number."""
        mine = self.trace.operators
        place = np.flatnonzero(mine["sequence"] >= 0)
        rows = Columns("thread", "t0", "t1")
        rows.extend(len(place), **{name: mine[name][place] for name in ("thread", "t0", "t1")})
        sequence, t0 = mine["sequence"][place], mine["t0"][place]
        order = np.lexsort((t0, sequence))
        begins = np.ones(len(order), np.bool_)
        begins[1:] = sequence[order[1:]] != sequence[order[:-1]]
        first = np.empty(len(order), np.int64)
        first[order] = order[begins][np.cumsum(begins) - 1]
        return rows, first

    @cached_property
    def _forward_paths(self) -> Integers:
        numbered, _ = self._numbered
        rows, paths = self.modules
        return taken(paths, around(rows, numbered["thread"], numbered["t0"]))

    @cached_property
    def modules(self) -> tuple[Columns, Integers]:
        """The ranges of modules, and the path of each."""
        ranges, names = self.trace.ranges, self.trace.names
        for accept in (_own, _of_profiler, _foreign):
            place = np.flatnonzero(chosen(names, ranges["name"], accept))
            if len(place):
                break
        rows = Columns("thread", "t0", "t1")
        rows.extend(len(place), **{name: ranges[name][place] for name in ("thread", "t0", "t1")})
        if not len(place):
            return rows, nulls(0)
        labels = [names.texts[n] for n in ranges["name"][place].tolist()]
        if accept is _own:
            texts = [label.removeprefix(LAYER_PREFIX) for label in labels]
        else:
            texts = _paths(rows, [label.removeprefix(MODULE) for label in labels])
        return rows, names.of(texts)


def _paths(rows: Columns, labels: list[str]) -> list[str]:
    """The labels of each range and of those around it."""
    paths = list(labels)
    t0, t1, threads = (rows[name] for name in ("t0", "t1", "thread"))
    for thread in np.unique(threads).tolist():
        mine = np.flatnonzero(threads == thread)
        parents = innermost(t0[mine], t1[mine]).parent
        for k in np.lexsort((-t1[mine], t0[mine])).tolist():
            if parents[k] >= 0:
                paths[mine[k]] = paths[mine[parents[k]]] + SEPARATOR + labels[mine[k]]
    return paths


def _own(name: str) -> bool:
    return name.startswith(LAYER_PREFIX)


def _of_profiler(name: str) -> bool:
    return name.startswith(MODULE)


def _foreign(name: str) -> bool:
    """A range that a program set around a part of its model."""
    return bool(name) and phase_of(name) is None
