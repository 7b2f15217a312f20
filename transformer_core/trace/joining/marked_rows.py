"""Rows of what the host marks: steps, phases, calls of modules, waits; and of its allocators."""

import re

import numpy as np

from transformer_core.trace.events.phases import ALLOCATED_PREFIX
from transformer_core.trace.events.texts import taken
from transformer_core.trace.joining.process_rows import ProcessRows
from transformer_core.trace.readers.columns import NULL, Integers, nulls

_MARK = re.compile(rf"{ALLOCATED_PREFIX}([0-9]{{1,9}}):([0-9]{{1,18}})")
_CPU = -1
"""The allocator of the host, by its number in a trace."""


def ranges(rows: ProcessRows) -> dict[str, Integers]:
    """The ranges of steps and phases."""
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


def modules(rows: ProcessRows) -> dict[str, Integers]:
    """The calls of modules, with the bytes that each leaves allocated."""
    calls, paths = rows.layers.modules
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
    """The calls in which the host waits for a device."""
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
    names = [rows.names["cpu" if n == _CPU else f"cuda:{n}"] for n in numbers.tolist()]
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
    # Nothing was said before the first event: it may have been allocated long since.
    return np.where(before == NULL, NULL, after - before)
