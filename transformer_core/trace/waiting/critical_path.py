"""The critical path of one step: the chain of work and waiting that set its length.

It is followed from the end backwards. An event of a device began when what ran before it had ended,
or, if it was launched later than that, when the host came to launch it. The host came there after
whatever it did since its last wait for the device; where it waited, the path goes on with the event
that it waited for. The parts lie end to end, so they sum to the step.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from schemas.results.profile_details import PathPart
from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.rows import Rows
from transformer_core.trace.events.time_intervals import Segments, innermost, union
from transformer_core.trace.readers.columns import NULL

HOST, INPUT, LATENCY = "host", "input", "latency"

_OUTSIDE = "outside the phases"


@dataclass
class _Path:
    """Stretches of the path, summed by kind and name."""

    times: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    counts: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, kind: str, name: str, time: int) -> None:
        if time > 0:
            self.times[kind, name] += time
            self.counts[kind, name] += 1

    def parts(self) -> list[PathPart]:
        return [
            PathPart(kind=kind, name=name, count=self.counts[kind, name], time_ns=time)
            for (kind, name), time in sorted(self.times.items(), key=lambda item: -item[1])
        ]


class _Host:
    """What the host did when."""

    def __init__(self, ranges: Rows, waits: Rows) -> None:
        marks = ranges.where(~ranges.equal("name", phases.STEP))
        self.cut: Segments = innermost(marks["t0_ns"], marks["t1_ns"])
        self.names = marks["name"]
        waiting = union(waits["t0_ns"], waits["t1_ns"])
        self.wait_begins, self.wait_ends = waiting.t0, waiting.t1

    def last_wait(self, time: int) -> tuple[int, int] | None:
        """Begin and end of the last wait that had begun before ``time``."""
        place = int(np.searchsorted(self.wait_begins, time)) - 1
        if place < 0:
            return None
        return int(self.wait_begins[place]), min(int(self.wait_ends[place]), time)

    def tell(self, path: _Path, begin: int, end: int) -> None:
        """Add what the host did in a stretch, by phase."""
        first = int(np.searchsorted(self.cut.t1, begin, side="right"))
        at = begin
        while at < end:
            known = first < len(self.cut.t0) and self.cut.t0[first] < end
            start = max(at, int(self.cut.t0[first])) if known else end
            path.add(HOST, _OUTSIDE, start - at)
            if not known:
                return
            at = min(end, int(self.cut.t1[first]))
            phase = str(self.names[self.cut.owner[first]])
            path.add(INPUT if phase == phases.DATA else HOST, phase, at - start)
            first += 1


def critical_path(rows: Rows, ranges: Rows, waits: Rows, begin: int, end: int) -> list[PathPart]:
    """The parts of the path from ``begin`` to ``end``, longest first; they sum to that stretch.

    On a CPU host and device are one: what precedes an event is whatever ran there before it.
    """
    cpu = bool(len(rows)) and str(rows["device"][0]) == "cpu"
    inside = rows.where((rows["t1_ns"] > begin) & (rows["t0_ns"] < end))
    inside = inside.where(np.argsort(inside["t1_ns"], kind="stable"))
    host, path = _Host(ranges, waits), _Path()
    t0, t1, launches = (inside[name] for name in ("t0_ns", "t1_ns", "launch_ns"))
    kinds, names = inside["class"], _names(inside)
    at, event = end, _last(t1, end)
    while at > begin:
        if event < 0:
            host.tell(path, begin, at)
            break
        # What is between the event's end and here was the host's: after the last event of a step.
        host.tell(path, max(begin, int(t1[event])), at)
        at = min(at, int(t1[event]))
        start = max(begin, int(t0[event]))
        path.add(str(kinds[event]), str(names[event]), at - start)
        at, before = start, _last(t1, start, event)
        ended = int(t1[before]) if before >= 0 else begin
        launch = int(launches[event])
        if launch == NULL or launch <= ended:
            path.add(LATENCY, "", at - max(begin, min(at, ended)))
            at, event = min(at, ended), before
            continue
        if cpu:
            host.tell(path, ended, at)
            at, event = ended, before
            continue
        launch = min(at, max(begin, launch))
        path.add(LATENCY, "", at - launch)
        at, event = _on_host(host, path, launch, begin, t1, before)
    return path.parts()


def _on_host(
    host: _Host, path: _Path, at: int, begin: int, t1: np.ndarray, before: int
) -> tuple[int, int]:
    """Go back on the host from a launch to its last wait; where the path goes on, and with which
    event (-1 for none)."""
    wait = host.last_wait(at)
    if wait is None or wait[1] <= begin:
        # Nothing made the host wait in the step, or nobody recorded it.
        host.tell(path, begin, at)
        return begin, -1
    host.tell(path, wait[1], at)
    return wait[1], _last(t1, wait[1], before + 1)


def _last(t1: np.ndarray, time: int, limit: int | None = None) -> int:
    """The event that ends last of those that end by ``time``, of the first ``limit``; or -1."""
    place = int(np.searchsorted(t1, time, side="right"))
    return (place if limit is None else min(place, limit)) - 1


def _names(rows: Rows) -> np.ndarray:
    """The collective, the operator, or else the name of each event."""
    found = rows["name"].copy()
    for column in ("operator", "collective"):
        known = ~rows.missing(column)
        found[known] = rows[column][known]
    talks = rows.equal("class", event_table.COMMUNICATION)
    copies = ~rows.missing("copy_kind")
    found[copies & ~talks] = rows["copy_kind"][copies & ~talks]
    return found
