"""The timeline of one step: the work of each stream of each device."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from transformer_core.common.tables import read_table
from transformer_core.trace.breakdown.devices import median_step, step_windows
from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.arrow import events_of
from transformer_core.trace.events.clocks import clock_offsets
from transformer_core.trace.events.event_table import Rows, rows_of
from transformer_core.trace.events.operators import OPERATOR_CLASSES

COPIES = "copies"
GRAPHS = "graphs"

COLOURS = (*OPERATOR_CLASSES, COPIES, GRAPHS)  # the kinds of span in a lane

_STREAMS = 3
_COLUMNS = 300
_RANKS = 2

Span = tuple[int, int]


@dataclass(frozen=True)
class Lane:
    """One stream or, on a CPU, all computation or all communication."""

    rank: int
    label: str
    spans: dict[str, list[Span]]
    """Begins and ends in nanoseconds after the begin of the step, by :data:`COLOURS`."""


@dataclass(frozen=True)
class Timeline:
    window_ns: int
    phases: dict[int, list[tuple[str, int, int]]]
    """By rank: phase, begin and end of the ranges on the host."""
    lanes: list[Lane]


def read_timeline(path: Path) -> Timeline | None:
    """The step of median length in a file of events; null if it marks no steps.

    A lane is divided into columns, each showing the work that fills most of it, so a picture of
    thousands of events stays small. Only the first ranks appear, with their busiest streams.
    """
    table = read_table(path)
    ranks = sorted(pc.unique(table.column("rank")).to_pylist())[:_RANKS]
    table = table.filter(pc.is_in(table.column("rank"), pa.array(ranks, table.column("rank").type)))
    everything = rows_of(events_of(table))
    marks = everything.where(everything.equal("kind", "range"))
    parts = [
        (rank, marks.where(marks["rank"] == rank), mine)
        for rank, mine in everything.work.parts("rank")
    ]
    windows = step_windows(parts[0][2], parts[0][1]) if parts else {}
    steps = [(start, end) for start, end in windows.values() if start < end]
    if not steps:
        return None
    start, end = median_step(steps)
    # Each rank has its own clock if Nsight Systems recorded it, or another host.
    own = {
        offset.rank: (start - offset.nanoseconds, end - offset.nanoseconds)
        for offset in clock_offsets(everything.work)
    }
    return Timeline(
        end - start,
        {rank: _strip(mine, *own[rank]) for rank, mine, _ in parts},
        [
            Lane(rank, label, _spans(rows, *own[rank]))
            for rank, _, mine in parts
            for label, rows in _streams(mine, *own[rank])
        ],
    )


def _strip(marks: Rows, start: int, end: int) -> list[tuple[str, int, int]]:
    """The phases in a window; where they nest, the innermost."""
    found = zip(*(each.tolist() for each in phases.stretches(marks)), strict=True)
    return [
        (name, max(t0, start) - start, min(t1, end) - start)
        for t0, t1, name in found
        if t0 < end and t1 > start
    ]


def _streams(rows: Rows, start: int, end: int) -> list[tuple[str, Rows]]:
    inside = rows.where((rows["t0_ns"] < end) & (rows["t1_ns"] > start))
    if not len(inside):
        return []
    if str(inside["device"][0]) == "cpu":
        talks = inside["class"] == event_table.COMMUNICATION
        lanes = [("operators", inside.where(~talks)), ("communication", inside.where(talks))]
        return [(label, lane) for label, lane in lanes if len(lane)]
    found = []
    for device, mine in inside.parts("device"):
        streams = dict(mine.parts("stream"))
        busiest = sorted(streams, key=lambda stream: -streams[stream].union().length)[:_STREAMS]
        found += [(f"{device} stream {stream}", streams[stream]) for stream in sorted(busiest)]
    return found


def _spans(rows: Rows, start: int, end: int) -> dict[str, list[Span]]:
    """The runs of columns that each colour fills for the most part."""
    width = max(1, -(-(end - start) // _COLUMNS))
    columns = -(-(end - start) // width)
    covered = np.zeros((len(COLOURS), columns))
    copies = rows.equal("class", event_table.MEMCPY, event_table.MEMSET)
    kinds = np.where(copies, COPIES, rows["operator_class"])
    kinds[rows.equal("class", event_table.GRAPH)] = GRAPHS
    for number, colour in enumerate(COLOURS):
        busy = rows.union(kinds == colour).clip(start, end)
        # The time covered up to a moment grows inside the intervals only.
        times = np.append(0, np.stack([busy.t0, busy.t1], 1) - start)
        grown = np.cumsum(np.diff(times, prepend=0) * (np.arange(len(times)) % 2 == 0))
        covered[number] = np.diff(np.interp(np.arange(columns + 1) * width, times, grown))
    shown = np.where(covered.sum(0) * 2 >= width, covered.argmax(0), -1)
    borders = np.flatnonzero(np.diff(shown)) + 1
    spans: dict[str, list[Span]] = {}
    edges = np.concatenate([[0], borders, [columns]]).tolist()
    for begin, finish in pairwise(edges):
        if shown[begin] >= 0:
            span = (begin * width, min(finish * width, end - start))
            spans.setdefault(COLOURS[shown[begin]], []).append(span)
    return spans
