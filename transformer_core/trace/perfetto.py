"""The program ``trace perfetto FILE… --output ALL.json.gz``: one file of all ranks for
ui.perfetto.dev, in the Trace Event Format (Google, 2016).

Each rank is a process and each of its lanes a thread; the events of a thread are nested or disjoint.
All ranks are inside a collective at the same time: if the executions of two ranks do not overlap,
their clocks differ and are adjusted so that the collectives end together.
"""

import gzip
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from transformer_core.common.files import atomic_path
from transformer_core.trace.arguments import read_and_output, writing
from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.columns import NULL, Integers
from transformer_core.trace.events.event_table import Events, Rows, rows_of
from transformer_core.trace.events.operators import OPERATOR_CLASSES
from transformer_core.trace.events.phases import SEPARATOR
from transformer_core.trace.terminal import plain

Event = Mapping[str, Any]

_SHOWN = ("operator", "shapes", "layer", "phase", "step", "bytes", "flops", "correlation")
_ARGS = {name: name for name in _SHOWN} | {"graph": "CUDA graph"}
"""Columns that a viewer shows with an event, and their names there."""


def events_of_rank(rank: int, rows: Rows, origin: int) -> Iterator[Event]:
    """All events of one rank: steps, phases, layers, streams, classes, memory and links. Times are
    microseconds after ``origin``, which is in nanoseconds on the clock of the trace."""
    lanes = _Lanes(rank, origin)
    yield lanes.about("process_name", tid=0, name=f"rank {rank}")
    yield lanes.about("process_sort_index", sort_index=rank)
    work = rows.work
    marks = rows.where(rows.equal("kind", "range"))
    steps = marks.equal("name", phases.STEP)
    yield from lanes.draw("steps", marks.where(steps))
    yield from lanes.draw("phases", marks.where(~steps))
    modules = rows.where(rows.equal("kind", "module"))
    for thread, mine in modules.parts("thread"):
        yield from lanes.draw(f"layers of thread {thread}", mine)
    yield from lanes.draw("waits for devices", rows.where(rows.equal("kind", "wait")))
    for device, mine in work.parts("device"):
        for stream, rows_of_stream in mine.parts("stream"):
            yield from lanes.draw(f"{device} stream {stream}", rows_of_stream)
        for kind in (*OPERATOR_CLASSES, event_table.MEMCPY, event_table.MEMSET, event_table.GRAPH):
            column = "operator_class" if kind in OPERATOR_CLASSES else "class"
            yield from lanes.merged(f"{device} {kind}", kind, mine.where(mine.equal(column, kind)))
        yield from _links(lanes, device, mine)
    memory = rows.where(rows.equal("kind", "memory"))
    for device, mine in memory.parts("device"):
        mine = mine.where(np.argsort(mine["t0_ns"], kind="stable"))
        times, sizes = mine["t0_ns"].tolist(), mine["bytes"].tolist()
        yield from lanes.counter(f"{device} allocated (bytes)", times, sizes)


class _Lanes:
    """The threads of a rank, numbered in order of appearance."""

    def __init__(self, rank: int, origin: int) -> None:
        self.rank, self.origin = rank, origin
        # Perfetto shows a thread with the number of its process as the main thread, out of order.
        self._numbers = count(rank + 1)

    def about(self, what: str, tid: int | None = None, **args: object) -> Event:
        lane = {} if tid is None else {"tid": tid}
        return {"ph": "M", "name": what, "pid": self.rank, **lane, "args": args}

    def _open(self, name: str) -> Generator[Event, None, int]:
        """Yields the head of a new lane; returns its number."""
        number = next(self._numbers)
        yield self.about("thread_name", number, name=name)
        yield self.about("thread_sort_index", number, sort_index=number)
        return number

    def draw(self, name: str, rows: Rows) -> Iterator[Event]:
        """A lane of events, and further lanes for events that overlap others without nesting."""
        rows = rows.where(np.lexsort((-rows["t1_ns"], rows["t0_ns"])))
        told = {column: rows[column].tolist() for column in (*_ARGS, "kind", "class", "name")}
        times = zip(rows["t0_ns"].tolist(), rows["t1_ns"].tolist(), strict=True)
        lanes: list[tuple[int, list[int]]] = []
        for place, (t0, t1) in enumerate(times):
            lane = next((lane for lane in lanes if _fits(lane[1], t0, t1)), None)
            if lane is None:
                label = name if not lanes else f"{name} ({len(lanes) + 1})"
                lane = ((yield from self._open(label)), [])
                lanes.append(lane)
            lane[1].append(t1)
            yield self._event(lane[0], t0, t1, {key: told[key][place] for key in told})

    def _span(self, lane: int, name: str, category: str, t0: int, t1: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self.rank,
            "tid": lane,
            "ts": (t0 - self.origin) / 1000,
            "dur": (t1 - t0) / 1000,
        }

    def _event(self, lane: int, t0: int, t1: int, told: dict[str, Any]) -> Event:
        args = {
            label: told[key]
            for key, label in _ARGS.items()
            if told[key] is not None and told[key] != NULL
        }
        name = str(told["name"] or told["kind"])
        if told["kind"] == "module":
            name = name.rpartition(SEPARATOR)[2]
        # Not memcpy and the like, by which a reader of traces knows events of a profiler.
        category = f"device {told['class']}" if told["class"] else str(told["kind"])
        return self._span(lane, name, category, t0, t1) | {"args": args}

    def merged(self, name: str, kind: str, rows: Rows) -> Iterator[Event]:
        if not len(rows):
            return
        number, busy = (yield from self._open(name)), rows.union()
        for t0, t1 in zip(busy.t0.tolist(), busy.t1.tolist(), strict=True):
            yield self._span(number, kind, "class", t0, t1)

    def counter(self, name: str, times: list[int], values: list[int]) -> Iterator[Event]:
        for time, value in zip(times, values, strict=True):
            event = {"ph": "C", "name": name, "pid": self.rank, "ts": (time - self.origin) / 1000}
            yield event | {"args": {"value": value}}


def _fits(ends: list[int], t0: int, t1: int) -> bool:
    """Whether an event nests in the open events of a lane or follows them; closes those that ended."""
    while ends and ends[-1] <= t0:
        ends.pop()
    return not ends or t1 <= ends[-1]


def _links(lanes: _Lanes, device: str, rows: Rows) -> Iterator[Event]:
    """Bytes per second of running collectives and copies, from their sizes and durations."""
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
        yield from lanes.counter(f"{device} {name} (bytes/s)", moments.tolist(), values)


def write(path: Path, table: Events) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        if path.suffix != ".gz":
            write_to(stream, table)
        else:  # without name and time, so that the same events give the same file
            with gzip.GzipFile("", "wb", compresslevel=5, fileobj=stream, mtime=0) as packed:
                write_to(packed, table)


def write_to(stream: BinaryIO | gzip.GzipFile, table: Events) -> None:
    """Writes the JSON of all ranks, whose times are on one clock."""
    rows = rows_of(table)
    origin = int(rows["t0_ns"].min(initial=2**63 - 1))
    parts = (events_of_rank(rank, mine, origin) for rank, mine in rows.parts("rank"))
    encode = msgspec.json.Encoder().encode
    stream.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    for number, event in enumerate(chain.from_iterable(parts)):
        stream.write((b",\n" if number else b"") + encode(event))
    stream.write(b"\n]}\n")


def main(arguments: Sequence[str]) -> int:
    _, table, output = read_and_output(
        "perfetto",
        "Write the traces of all ranks, or an events.parquet, to one file for ui.perfetto.dev: "
        "steps, phases, layers, streams, classes of operators, memory and links. Collectives align "
        "the clocks of the ranks.",
        "all.json.gz",
        arguments,
    )
    if output == Path("-"):
        write_to(sys.stdout.buffer, table)
        return 0
    with writing(output):
        write(output, table)
    print(plain(f"{output}: open it in https://ui.perfetto.dev"))
    return 0
