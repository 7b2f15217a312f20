"""Events in the JSON of the Trace Event Format, which Perfetto and chrome://tracing open.

Source: Trace Event Format (Google, 2016). Times are microseconds; a process is a rank, and every
lane of a rank a thread of it. Events of one thread lie in each other or apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.layers import SEPARATOR
from transformer_core.trace.events.rows import Rows
from transformer_core.trace.operators.operator_classes import OPERATOR_CLASSES
from transformer_core.trace.readers.columns import NULL, Integers

Event = Mapping[str, Any]

_ARGS = {
    "operator": "operator",
    "shapes": "shapes",
    "layer": "layer",
    "phase": "phase",
    "step": "step",
    "bytes": "bytes",
    "flops": "flops",
    "correlation": "correlation",
    "graph": "CUDA graph",
}


@dataclass(frozen=True)
class Clock:
    """From nanoseconds of a trace to microseconds after the begin."""

    origin_ns: int

    def __call__(self, time_ns: int) -> float:
        return (time_ns - self.origin_ns) / 1000


def events_of_rank(rank: int, rows: Rows, clock: Clock) -> Iterator[Event]:
    """All events of one rank: steps, phases, layers, streams, classes, memory and links."""
    yield _named("process_name", rank, 0, f"rank {rank}")
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    lanes = _Lanes(rank, clock)
    work = rows.work
    marks = rows.where(rows.equal("kind", "range"))
    steps = marks.equal("name", phases.STEP)
    yield from lanes.draw("steps", marks.where(steps))
    yield from lanes.draw("phases", marks.where(~steps))
    modules = rows.where(rows.equal("kind", "module"))
    for thread in np.unique(modules["thread"]).tolist():
        yield from lanes.draw(
            f"layers of thread {thread}", modules.where(modules["thread"] == thread)
        )
    yield from lanes.draw("waits for devices", rows.where(rows.equal("kind", "wait")))
    for device in sorted({*work["device"].tolist()}):
        mine = work.where(work.equal("device", device))
        for stream in np.unique(mine["stream"]).tolist():
            yield from lanes.draw(f"{device} stream {stream}", mine.where(mine["stream"] == stream))
        for kind in (*OPERATOR_CLASSES, event_table.MEMCPY, event_table.MEMSET, event_table.GRAPH):
            column = "operator_class" if kind in OPERATOR_CLASSES else "class"
            yield from lanes.merged(f"{device} {kind}", kind, mine.where(mine.equal(column, kind)))
        yield from _links(rank, device, mine, clock)
    memory = rows.where(rows.equal("kind", "memory"))
    for device in sorted({*memory["device"].tolist()}):
        yield from _memory(rank, device, memory.where(memory.equal("device", device)), clock)


def _named(what: str, rank: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": {"name": name}}


class _Lanes:
    """The threads of a rank, numbered in order of appearance."""

    def __init__(self, rank: int, clock: Clock) -> None:
        self.rank, self.clock = rank, clock
        # A thread with the number of its process would be shown as the main one, out of order.
        self._numbers = count(rank + 1)

    def _open(self, name: str) -> tuple[int, list[Event]]:
        number = next(self._numbers)
        order = {"ph": "M", "name": "thread_sort_index", "pid": self.rank, "tid": number}
        head = [_named("thread_name", self.rank, number, name)]
        return number, [*head, order | {"args": {"sort_index": number}}]

    def draw(self, name: str, rows: Rows) -> Iterator[Event]:
        """A lane of events as they are, and further ones for those that cross others."""
        if not len(rows):
            return
        rows = rows.where(np.lexsort((-rows["t1_ns"], rows["t0_ns"])))
        told = {column: rows[column].tolist() for column in (*_ARGS, "kind", "class", "name")}
        times = zip(rows["t0_ns"].tolist(), rows["t1_ns"].tolist(), strict=True)
        lanes: list[tuple[int, list[int]]] = []
        for place, (t0, t1) in enumerate(times):
            lane = next((lane for lane in lanes if _fits(lane[1], t0, t1)), None)
            if lane is None:
                number, head = self._open(name if not lanes else f"{name} ({len(lanes) + 1})")
                yield from head
                lane = (number, [])
                lanes.append(lane)
            lane[1].append(t1)
            yield self._event(lane[0], t0, t1, {key: told[key][place] for key in told})

    def _event(self, lane: int, t0: int, t1: int, told: dict[str, Any]) -> Event:
        args = {
            label: told[key]
            for key, label in _ARGS.items()
            if told[key] is not None and told[key] != NULL
        }
        name = str(told["name"] or told["kind"])
        if told["kind"] == "module":
            name = name.rpartition(SEPARATOR)[2]
        return {
            "ph": "X",
            "name": name,
            "cat": str(told["class"] or told["kind"]),
            "pid": self.rank,
            "tid": lane,
            "ts": self.clock(t0),
            "dur": (t1 - t0) / 1000,
            "args": args,
        }

    def merged(self, name: str, kind: str, rows: Rows) -> Iterator[Event]:
        """A lane of when anything of one kind runs."""
        if not len(rows):
            return
        number, head = self._open(name)
        yield from head
        busy = rows.union()
        for t0, t1 in zip(busy.t0.tolist(), busy.t1.tolist(), strict=True):
            event = {"ph": "X", "name": kind, "cat": "class", "pid": self.rank, "tid": number}
            yield event | {"ts": self.clock(t0), "dur": (t1 - t0) / 1000}


def _fits(ends: list[int], t0: int, t1: int) -> bool:
    """Whether an event lies within the open ones of a lane, or behind them; closes those behind
    which it lies."""
    while ends and ends[-1] <= t0:
        ends.pop()
    return not ends or t1 <= ends[-1]


def _memory(rank: int, device: str, rows: Rows, clock: Clock) -> Iterator[Event]:
    rows = rows.where(np.argsort(rows["t0_ns"], kind="stable"))
    times, sizes = rows["t0_ns"].tolist(), rows["bytes"].tolist()
    yield from _counter(rank, f"{device} allocated (bytes)", times, sizes, clock)


def _links(rank: int, device: str, rows: Rows, clock: Clock) -> Iterator[Event]:
    """Bytes a second that collectives and copies move, while they run, by their own sizes."""
    sides = {
        "communication": rows.equal("class", event_table.COMMUNICATION),
        "copies": rows.equal("class", event_table.MEMCPY),
    }
    for name, chosen in sides.items():
        mine = rows.where(chosen & (rows["bytes"] != NULL) & (rows.durations > 0))
        if not len(mine):
            continue
        rates = mine["bytes"] / (mine.durations * 1e-9)
        times: Integers = np.concatenate([mine["t0_ns"], mine["t1_ns"]])
        changes = np.concatenate([rates, -rates])
        order = np.argsort(times, kind="stable")
        moments, last = np.unique(times[order][::-1], return_index=True)
        sums = np.cumsum(changes[order])[len(order) - 1 - last]
        values = np.maximum(np.rint(sums), 0).astype(np.int64).tolist()
        yield from _counter(rank, f"{device} {name} (bytes/s)", moments.tolist(), values, clock)


def _counter(
    rank: int, name: str, times: list[int], values: list[int], clock: Clock
) -> Iterator[Event]:
    for time, value in zip(times, values, strict=True):
        event = {"ph": "C", "name": name, "pid": rank, "ts": clock(time)}
        yield event | {"args": {"value": value}}
