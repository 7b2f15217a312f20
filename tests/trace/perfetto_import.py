"""The rules of Perfetto's JSON importer, as far as these files need them.

After ``src/trace_processor/importers/json`` and ``importers/common/slice_tracker.cc`` of Perfetto
56: process and thread numbers have 32 bits, times become whole nanoseconds, events are sorted by time
(stably), and the slices of a thread are nested or disjoint. Anything that Perfetto would count as an
error or move to another track is an error here.
"""

import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Thread = tuple[int, int]
_MOST = 2**32 - 1


@dataclass(frozen=True)
class Slice:
    """In nanoseconds."""

    name: str
    category: str
    t0: int
    t1: int
    depth: int
    args: dict[str, Any]


@dataclass
class Imported:
    """The tables that queries use."""

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[Thread, str] = field(default_factory=dict)
    slices: defaultdict[Thread, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    counters: defaultdict[tuple[int, str], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def tracks(self, process: str) -> list[str]:
        """The names of its tracks that have slices, in their order."""
        pids = [pid for pid, name in self.processes.items() if name == process]
        return [n for key, n in self.threads.items() if key[0] in pids and key in self.slices]

    def track(self, process: str, thread: str) -> list[Slice]:
        """The slices of the one track of these names."""
        (found,) = [
            self.slices[key]
            for key, name in self.threads.items()
            if name == thread and self.processes[key[0]] == process
        ]
        return found


def imported(path: Path) -> Imported:
    """Imports a file like Perfetto; fails if any of it would be dropped."""
    packed = path.read_bytes()
    content = json.loads(gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed)
    found, open_slices = Imported(), defaultdict(list)
    timed = []
    for event in content["traceEvents"]:
        thread = (_number(event, "pid"), _number(event, "tid"))
        if event["ph"] == "M":
            _metadata(found, event, thread)
        else:
            timed.append((_nanoseconds(event, "ts"), event, thread))
    for ts, event, thread in sorted(timed, key=lambda entry: entry[0]):
        if event["ph"] == "C":
            _count(found, event, ts)
        else:
            assert event["ph"] == "X", f"a phase that none of these files has: {event}"
            end = ts + _nanoseconds(event, "dur")
            depth = _nest(open_slices[thread], ts, end)
            said = (event["name"], event["cat"])
            found.slices[thread].append(Slice(*said, ts, end, depth, event.get("args", {})))
    assert found.slices.keys() <= found.threads.keys(), "tracks without a name"
    return found


def _number(event: dict[str, Any], name: str) -> int:
    value = event.get(name, 0)
    fits = type(value) is int and 0 <= value <= _MOST
    assert fits, f"{name} has no 32 bits and would become 0: {event}"
    return value


def _nanoseconds(event: dict[str, Any], name: str) -> int:
    value = event.get(name)
    assert type(value) in (int, float), f"{name} is no time: {event}"
    assert 0 <= value < math.inf, f"{name} is no time: {event}"
    if value == math.trunc(value):
        return int(value) * 1000
    return math.floor(value * 1000 + 0.5)


def _metadata(found: Imported, event: dict[str, Any], thread: Thread) -> None:
    if event["name"] in ("process_sort_index", "thread_sort_index"):
        assert type(event["args"].get("sort_index")) in (int, float), f"no place: {event}"
        return
    names: dict[Any, str] = found.processes
    key: Any = thread[0]
    if event["name"] == "thread_name":
        assert thread[0] != thread[1], f"would be the main thread of its process: {event}"
        names, key = found.threads, thread
    else:
        assert event["name"] == "process_name", f"unknown metadata: {event}"
    assert event["args"].get("name"), f"no name: {event}"
    assert key not in names, f"a second name: {event}"
    names[key] = event["args"]["name"]


def _count(found: Imported, event: dict[str, Any], ts: int) -> None:
    assert event.get("args"), f"a counter without a value: {event}"
    for key, value in event["args"].items():
        assert type(value) in (int, float), f"a counter that is no number: {event}"
        found.counters[event["pid"], f"{event['name']} {key}"].append((ts, value))


def _nest(stack: list[tuple[int, int]], t0: int, t1: int) -> int:
    """Closes the slices that have ended; returns the depth of the new one."""
    while stack:
        begin, end = stack[-1]
        if end > t0 or (end == t0 and begin == end and t0 == t1):
            break
        stack.pop()
    ends_inside = not stack or not t0 < stack[-1][1] < t1
    assert ends_inside, f"[{t0}, {t1}) ends behind the slice {stack[-1]} that it begins in"
    stack.append((t0, t1))
    return len(stack) - 1
