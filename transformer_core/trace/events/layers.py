"""Modules and source lines of operators and kernels, from ranges around their launches.

The project's own ranges name the path of a module; the profiler's ``nn.Module: Linear_0`` and ranges
that other programs set make one by lying in each other. What backward launches belongs where the
operator in forward does that autograd made it for, which has the same sequence number.
"""

import re
from functools import cached_property, lru_cache

import numpy as np

from transformer_core.trace.events.columns import NULL, Columns, Integers, nulls
from transformer_core.trace.events.intervals import innermost
from transformer_core.trace.events.joins import around, chosen, taken
from transformer_core.trace.events.phases import LAYER_PREFIX, phase_of
from transformer_core.trace.events.process import ProcessTrace

MODULE = "nn.Module: "
"""Prefix of the profiler's own ranges of modules."""

SEPARATOR = "/"


class Forward:
    """Operators with sequence numbers, and of each the first operator with its number."""

    def __init__(self, trace: ProcessTrace) -> None:
        self._operators = trace.operators

    @cached_property
    def numbered(self) -> tuple[Columns, Integers]:
        mine = self._operators
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


class Labels:
    """The innermost of some ranges around a launch: its label, as the number of a name."""

    def __init__(self, rows: Columns, labels: Integers, forward: Forward) -> None:
        self.rows, self.labels, self._forward = rows, labels, forward

    def at(self, thread: Integers, time: Integers) -> Integers:
        """The label at each launch; null where there is none."""
        if not len(self.rows):
            return nulls(len(time))
        found = taken(self.labels, around(self.rows, thread, time))
        missing = np.flatnonzero(found == NULL)
        rows, first = self._forward.numbered
        if len(missing) and len(rows):
            inside = around(rows, thread[missing], time[missing])
            found[missing] = taken(self._of_forward, taken(first, inside).clip(-1))
        return found

    @cached_property
    def _of_forward(self) -> Integers:
        rows, _ = self._forward.numbered
        return taken(self.labels, around(self.rows, rows["thread"], rows["t0"]))


def modules(trace: ProcessTrace) -> tuple[Columns, Integers]:
    ranges, names = trace.ranges, trace.names
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


_FRAME = re.compile(r"(.+\.py)\(\d+\): ")
_NOT_OWN = re.compile(
    r"(.*/)?(torch|triton|contextlib\.py|functools\.py|threading\.py|runpy\.py)(/.*|$)"
)


@lru_cache(maxsize=1 << 16)
def own_line(stack: str) -> str | None:
    """The innermost function of the program itself in a stack, ``train.py(12): step``; null if all
    of it belongs to PyTorch or to Python."""
    for frame in stack.split(";"):
        if (found := _FRAME.match(frame)) and not _NOT_OWN.fullmatch(found[1]):
            return frame
    return None


def _own(name: str) -> bool:
    return name.startswith(LAYER_PREFIX)


def _of_profiler(name: str) -> bool:
    return name.startswith(MODULE)


def _foreign(name: str) -> bool:
    return bool(name) and phase_of(name) is None
