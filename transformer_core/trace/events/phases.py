"""Steps, phases and modules of a training, from the ranges around launches, and the source lines of
launches.

Threads of data loaders are separated: their copies coincide with arbitrary phases and belong to none.
The project's own ranges contain the path of a module. For the profiler's ``nn.Module: Linear_0`` and
ranges that other programs set, the path follows from how the ranges nest. Work launched in backward
belongs to the module of the forward operator with the same sequence number, for which autograd
created it.
"""

import re
from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.columns import (
    NULL,
    Columns,
    Integers,
    around,
    chosen,
    mapped,
    nulls,
    places_by_value,
    taken,
)
from transformer_core.trace.events.event_table import Rows
from transformer_core.trace.events.intervals import Innermost
from transformer_core.trace.events.process import ProcessTrace

STEP = "step"
"""The range around a whole optimizer step. Steps are numbered in order of time."""

PHASES = ("data", "forward", "loss", "backward", "optimizer")
DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER = PHASES
"""The phases of a step, in order. The loss may lie inside the forward: the innermost range counts."""

LOADER = "loader"  # listed with the phases: work of threads that launch no kernel of the step
PREFIX = "phase:"  # prefix of the project's own ranges, in NVTX and in torch.profiler alike
CAPTURE_RANGE = "capture"  # around the profiled steps, in the project's own captures
LAYER_PREFIX = "layer:"  # prefix of the project's ranges of modules, before the path of the module

ALLOCATED_PREFIX = "allocated:"
"""Prefix of the project's marks of allocated memory, before device number and bytes, as in
``allocated:0:4096``."""

_FOREIGN = (
    (re.compile(r"ProfilerStep#\d+"), STEP),
    (re.compile(r"Optimizer\.step#.*|Optimizer\.zero_grad#.*"), OPTIMIZER),
    (re.compile(r"enumerate\(DataLoader\)#.*"), DATA),
    (re.compile(r"DistributedDataParallel\.forward"), FORWARD),
    (re.compile(r"autograd::engine::evaluate_function: .*"), BACKWARD),
)
"""Ranges that PyTorch sets itself, for traces that the project did not capture."""

_WORD = re.compile(
    r"[\W_]*(step|iteration|data|forward|loss|backward|optimizer)[\W_]*\d*", re.IGNORECASE
)


def label(phase: str) -> str:
    return PREFIX + phase


def phase_of(name: str) -> str | None:
    """The phase that a range marks, or null. Recognizes the project's ranges and those that users and
    PyTorch commonly set (``## forward ##``, ``ProfilerStep#7``)."""
    if name.startswith(PREFIX):
        phase = name.removeprefix(PREFIX)
        return phase if phase == STEP or phase in PHASES else None
    if match := _WORD.fullmatch(name):
        return match[1].lower().replace("iteration", STEP)
    return next((phase for pattern, phase in _FOREIGN if pattern.fullmatch(name)), None)


def stretches(ranges: Rows) -> tuple[Integers, Integers, NDArray[np.object_]]:
    """Begins, ends and names of the phases that ``ranges`` mark, in order of time; where ranges nest,
    the innermost."""
    marks = ranges.where(~ranges.equal("name", STEP))
    t0, t1, owner = Innermost(marks["t0_ns"], marks["t1_ns"]).stretches
    return t0, t1, marks["name"][owner]


class Marks:
    """Steps and phases by the names of ranges. The program's own marks count; those of PyTorch only if
    there are none."""

    def __init__(self, trace: ProcessTrace) -> None:
        self.trace = trace
        self.steps = self._found(True)
        """Names (as numbers), begins, ends and threads of the steps, in order of time."""
        self.phases = self._found(False)
        """The same for phases; the names are those of :data:`PHASES`."""
        self._step, self._phase = (Innermost(*found[1:3]) for found in (self.steps, self.phases))

    def placed(self, times: Integers) -> dict[str, Integers]:
        step = self._step.at(times)
        return {
            "phase": taken(self.phases[0], self._phase.at(times)),
            "step": np.where(step >= 0, step, NULL),
        }

    def _found(self, steps: bool) -> tuple[Integers, Integers, Integers, Integers]:
        names = self.trace.names
        parts: list[tuple[Integers, ...]] = [(nulls(0),) * 4]
        for rows in (self.trace.ranges, self.trace.operators):
            if not len(rows):
                continue
            found = {
                number: phase
                for number in np.unique(rows["name"]).tolist()
                if (phase := phase_of(names.texts[number])) and (phase == STEP) == steps
            }
            own = {n for n, p in found.items() if names.texts[n] == label(p)}
            chosen = np.flatnonzero(np.isin(rows["name"], list(own or found)))
            labels = mapped(names, rows["name"][chosen], phase_of)
            parts.append((labels, *(rows[name][chosen] for name in ("t0", "t1", "thread"))))
            if own or (steps and found):
                break
        name, t0, t1, thread = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((-t1, t0)) if steps else np.argsort(t0, kind="stable")
        if steps and len(order):
            # The profiler and the program may both mark a step: the outer range counts.
            latest = np.maximum.accumulate(t1[order])
            order = order[np.append(True, latest[1:] > latest[:-1])]
        return name[order], t0[order], t1[order], thread[order]


_MOST = 0.9


def of_loaders(
    marks: Marks,
    thread: Integers,
    kernel: NDArray[np.bool_],
    takes_part: NDArray[np.bool_],
    phase: Integers,
) -> NDArray[np.bool_]:
    """Marks the device events launched by threads that launch no kernel of the step; ``takes_part``
    marks those launched from inside operators, or that communicate.

    A thread takes part in the step if it has ranges of phases or steps, launches from inside
    operators, communicates, or launches nearly all its kernels during backward, as the threads of
    autograd do. Without ranges of phases, all threads count as taking part.
    """
    found = np.zeros(len(thread), np.bool_)
    marked = set(marks.phases[3].tolist())
    if not marked:
        return found
    backward = marks.trace.names[BACKWARD]
    marks_backward = bool((marks.phases[0] == backward).any())
    own = marked | set(marks.steps[3].tolist())
    for number in np.unique(thread[thread != NULL]).tolist():
        mine = thread == number
        kernels = mine & kernel
        if number in own or (mine & takes_part).any():
            continue
        count = int(kernels.sum())
        if count and not marks_backward:
            continue  # probably a thread of autograd
        if count and int((kernels & (phase == backward)).sum()) >= _MOST * count:
            continue
        found |= mine
    return found


MODULE = "nn.Module: "  # prefix of the profiler's own ranges of modules

SEPARATOR = "/"


def _stretches_of(rows: Columns, places: Integers) -> Columns:
    """Threads, begins and ends of some rows."""
    found, names = Columns("thread", "t0", "t1"), ("thread", "t0", "t1")
    found.extend(**{name: rows[name][places] for name in names})
    return found


_OF_BACKWARD = re.compile(r"autograd::engine::.*|(\w+::)*\w*Backwards?\d*")


def forward_operators(trace: ProcessTrace) -> tuple[Columns, Integers]:
    """The operators with sequence numbers, and for each the operator of forward that it belongs to.

    An operator of forward belongs to itself, one of autograd to the last operator before it with the
    same number. All operators called until the next one that autograd records have its number, even
    without a gradient and outside the module. Threads count separately: the one that has a number
    first has the forward.
    """
    mine = trace.operators
    place = np.flatnonzero(mine["sequence"] >= 0)
    rows = _stretches_of(mine, place)
    backward = chosen(trace.names, mine["name"][place], _OF_BACKWARD.fullmatch)
    sequence, thread, t0 = mine["sequence"][place], rows["thread"], rows["t0"]
    order = np.lexsort((t0, backward, sequence))
    _, begins, group = np.unique(sequence[order], return_index=True, return_inverse=True)
    first = order[begins[group.reshape(-1)]]  # the first operator of forward with the number
    order, first = (each[np.lexsort((t0[order], sequence[order]))] for each in (order, first))
    could = ~backward[order] & (thread[order] == thread[first])
    last = np.maximum.accumulate(np.where(could, np.arange(len(order)), -1))
    # Without one before it on that thread, the last is of another number.
    fits = (last >= 0) & (sequence[order[last]] == sequence[order])
    found = np.empty(len(order), np.int64)
    found[order] = np.where(fits, order[last], first)
    return rows, np.where(backward, found, np.arange(len(order)))


class Labels:
    """Finds the innermost of some ranges around a launch, and its label as the number of a name.
    ``forward`` returns the :func:`forward_operators`."""

    def __init__(
        self, rows: Columns, labels: Integers, forward: Callable[[], tuple[Columns, Integers]]
    ) -> None:
        self.rows, self.labels, self._forward = rows, labels, forward

    def at(self, thread: Integers, time: Integers) -> Integers:
        """The label at each launch; null without one."""
        if not len(self.rows):
            return nulls(len(time))
        found = taken(self.labels, around(self.rows, thread, time))
        missing = np.flatnonzero(found == NULL)
        rows, origin = self._forward()
        if len(missing) and len(rows):
            inside = around(rows, thread[missing], time[missing])
            found[missing] = taken(self._of_forward, taken(origin, inside))
        return found

    @cached_property
    def _of_forward(self) -> Integers:
        rows, _ = self._forward()
        return taken(self.labels, around(self.rows, rows["thread"], rows["t0"]))


def modules(trace: ProcessTrace) -> tuple[Columns, Integers]:
    ranges, names = trace.ranges, trace.names
    accepted: tuple[Callable[[str], bool], ...] = (
        lambda name: name.startswith(LAYER_PREFIX),
        lambda name: name.startswith(MODULE),
        lambda name: name not in ("", CAPTURE_RANGE) and phase_of(name) is None,
    )
    found = (np.flatnonzero(chosen(names, ranges["name"], accept)) for accept in accepted)
    number, place = next(((n, p) for n, p in enumerate(found) if len(p)), (0, nulls(0)))
    rows = _stretches_of(ranges, place)
    if not len(place):
        return rows, nulls(0)
    labels = [names.texts[n] for n in ranges["name"][place].tolist()]
    if number == 0:  # its own ranges name whole paths
        texts = [label.removeprefix(LAYER_PREFIX) for label in labels]
    else:
        texts = _paths(rows, [label.removeprefix(MODULE) for label in labels])
    return rows, names.of(texts)


def _paths(rows: Columns, labels: list[str]) -> list[str]:
    """Joins the label of each range to those of the ranges around it."""
    paths = list(labels)
    t0, t1, threads = (rows[name] for name in ("t0", "t1", "thread"))
    for mine in places_by_value(threads).values():
        parents = Innermost(t0[mine], t1[mine]).parent
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
    """The innermost function of the program in a stack, as ``train.py(12): step``; null if the whole
    stack belongs to PyTorch or Python."""
    for frame in stack.split(";"):
        if (found := _FRAME.match(frame)) and not _NOT_OWN.fullmatch(found[1]):
            return frame
    return None
