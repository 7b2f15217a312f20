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


class Refused(AssertionError):
    """An error of the file, by Perfetto's rules."""


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
    """Imports a file like Perfetto; raises :class:`Refused` if any of it would be dropped."""
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
        elif event["ph"] == "X":
            end = ts + _nanoseconds(event, "dur")
            depth = _nest(open_slices[thread], ts, end)
            said = (event["name"], event["cat"])
            found.slices[thread].append(Slice(*said, ts, end, depth, event.get("args", {})))
        else:
            raise Refused(f"a phase that none of these files has: {event}")
    if unnamed := [key for key in found.slices if key not in found.threads]:
        raise Refused(f"tracks without a name: {unnamed}")
    return found


def _number(event: dict[str, Any], name: str) -> int:
    value = event.get(name, 0)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise Refused(f"{name} has no 32 bits and would become 0: {event}")
    return value


def _nanoseconds(event: dict[str, Any], name: str) -> int:
    value = event.get(name)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise Refused(f"{name} is no time: {event}")
    if value == math.trunc(value):
        return int(value) * 1000
    return math.floor(value * 1000 + 0.5)


def _metadata(found: Imported, event: dict[str, Any], thread: Thread) -> None:
    if event["name"] in ("process_sort_index", "thread_sort_index"):
        if type(event["args"].get("sort_index")) not in (int, float):
            raise Refused(f"no place in the order: {event}")
        return
    names: dict[Any, str] = {"process_name": found.processes, "thread_name": found.threads}[
        event["name"]
    ]
    key = thread[0] if event["name"] == "process_name" else thread
    if not event["args"].get("name") or key in names:
        raise Refused(f"no name, or a second one: {event}")
    if event["name"] == "thread_name" and thread[0] == thread[1]:
        raise Refused(f"would be the main thread of its process: {event}")
    names[key] = event["args"]["name"]


def _count(found: Imported, event: dict[str, Any], ts: int) -> None:
    if not event.get("args"):
        raise Refused(f"a counter without a value: {event}")
    for key, value in event["args"].items():
        if type(value) not in (int, float):
            raise Refused(f"a counter that is no number: {event}")
        found.counters[event["pid"], f"{event['name']} {key}"].append((ts, value))


def _nest(stack: list[tuple[int, int]], t0: int, t1: int) -> int:
    """Closes the slices that have ended; returns the depth of the new one."""
    while stack:
        begin, end = stack[-1]
        if end > t0 or (end == t0 and begin == end and t0 == t1):
            break
        stack.pop()
    if stack and t0 < stack[-1][1] < t1:
        raise Refused(f"[{t0}, {t1}) ends behind the slice {stack[-1]} that it begins in")
    stack.append((t0, t1))
    return len(stack) - 1
