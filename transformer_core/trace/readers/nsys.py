"""NVTX ranges of a report: operators of PyTorch, collectives of NCCL, and what programs mark."""

import json
import re
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_core.common.progress import Progress
from transformer_core.trace.events.collectives import OTHER, collective_of
from transformer_core.trace.events.columns import NULL, Integers, or_null
from transformer_core.trace.events.process import (
    LAUNCH_NAME,
    LeftOut,
    ProcessTrace,
    Source,
    group_named,
    unusable,
    waits,
    without_kernels,
)

_OPERATOR = re.compile(r"[\w.]+::[^,]+|[A-Z]\w*Backward\d*")
"""How a range begins that torch.autograd.profiler.emit_nvtx sets:
``aten::mm, seq = 3, op_id = 7, sizes = [[…]]``."""
_SIZES = re.compile(r"sizes = (\[.*?\])(?:, input_op_ids|$)")
_SEQUENCE = re.compile(r"\bseq = ([0-9]{1,18})\b")
_COLLECTIVE = re.compile(r"(nccl|rccl|gloo|ucc|mpi):.*|nccl[A-Z]\w*")
_PAYLOAD_BYTES = re.compile(r"message size.*bytes", re.IGNORECASE)
_PAYLOAD_GROUP = re.compile(r"communicator id", re.IGNORECASE)


@dataclass(frozen=True)
class Ranges:
    """Ranges of a process: their threads, begins and ends in nanoseconds, and texts."""

    thread: Integers
    t0: Integers
    t1: Integers
    names: Sequence[str]
    payload: Callable[[int], str | None]
    """A text of JSON for the range at a place, if it has one."""

    def where(self, chosen: NDArray[np.int64]) -> dict[str, Integers]:
        """The columns of some of them."""
        return {"thread": self.thread[chosen], "t0": self.t0[chosen], "t1": self.t1[chosen]}


def add_ranges(trace: ProcessTrace, found: Ranges) -> None:
    """Take up ranges as what they are. Most are operators, each with a text of its own, so that
    only what stands before the first comma is looked up, and the rest searched for what it has."""
    heads = [name.partition(", ")[0] for name in found.names]
    kinds = np.array([_kind(head) for head in heads], np.int8)
    # What begins like a collective is one only if all of its text is.
    for place in np.flatnonzero(kinds == _TALKS).tolist():
        if _COLLECTIVE.fullmatch(found.names[place]):
            _add_collective(trace, found, place)
        else:
            kinds[place] = _MARKS
    marks, operators = np.flatnonzero(kinds == _MARKS), np.flatnonzero(kinds == _OPERATES)
    labels = [found.names[place] for place in marks.tolist()]
    trace.ranges.extend(len(marks), **found.where(marks), name=trace.names.of(labels))
    labels = [heads[place] for place in operators.tolist()]
    texts = [found.names[place] for place in operators.tolist()]
    trace.operators.extend(
        len(operators),
        **found.where(operators),
        name=trace.names.of(labels),
        call=_calls(trace, labels, texts),
        sequence=np.array([_sequence(t) if "seq = " in t else -1 for t in texts], np.int64),
    )


_MARKS, _OPERATES, _TALKS = range(3)


@lru_cache(maxsize=1 << 14)
def _kind(head: str) -> int:
    """What a range may be by the begin of its text."""
    if _COLLECTIVE.fullmatch(head):
        return _TALKS
    return _OPERATES if _OPERATOR.fullmatch(head) else _MARKS


def _calls(trace: ProcessTrace, names: Sequence[str], texts: Sequence[str]) -> Integers:
    found = np.zeros(len(names), np.int64)
    for place, text in enumerate(texts):
        if "sizes = " in text and (sizes := _SIZES.search(text)):
            found[place] = trace.call(names[place], sizes[1], "")
    return found


def _sequence(text: str) -> int:
    found = _SEQUENCE.search(text)
    return int(found[1]) if found else -1


def _add_collective(trace: ProcessTrace, found: Ranges, place: int) -> None:
    name = found.names[place]
    if collective_of(name) != OTHER:
        size, group = _payload(found.payload(place))
        number = trace.names[name.partition(",")[0]]
        members = NULL if group is None else trace.names[group_named(str(group))]
        times = (int(column[place]) for column in (found.thread, found.t0, found.t1))
        trace.collectives.add(*times, number, or_null(size), NULL, members, 0)


def _payload(payload: str | None) -> tuple[int | None, int | None]:
    """Size of the message and communicator in the payload of NCCL's own ranges; null where there
    is none."""
    try:
        fields = json.loads(payload or "{}")
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(fields, dict):
        return None, None

    def first(pattern: re.Pattern[str]) -> int | None:
        named = (value for key, value in fields.items() if pattern.search(key))
        return next((value for value in named if type(value) is int), None)

    return first(_PAYLOAD_BYTES), first(_PAYLOAD_GROUP)


MEMORY_TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
MEMORY_COLUMNS = ("start", "deviceId", "bytes", "memKind", "memoryOperationType", "globalPid")

_ON_DEVICE = (2, 3, 5)
"""Device, array and static memory of a device, not of the host (ENUM_CUDA_MEM_KIND)."""
_ALLOCATION, _RELEASE = 0, 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER."""
_NO_SIZE = 2**50


def allocated(rows: dict[str, Integers]) -> Iterator[tuple[int, Integers, Integers]]:
    """Device, times and allocated bytes after each of them, of the events of one process.

    These are calls of the driver, of which a framework's own allocator makes few. What was there
    before the recording counts as far as it is released within it.
    """
    good = np.isin(rows["memKind"], _ON_DEVICE) & (rows["start"] != NULL)
    good &= np.isin(rows["memoryOperationType"], (_ALLOCATION, _RELEASE))
    good &= (rows["bytes"] >= 0) & (rows["bytes"] < _NO_SIZE) & (rows["deviceId"] >= 0)
    order = np.argsort(rows["start"], kind="stable")
    order = order[good[order]]
    for device in np.unique(rows["deviceId"][order]).tolist():
        mine = order[rows["deviceId"][order] == device]
        grown = rows["memoryOperationType"][mine] == _ALLOCATION
        total = np.cumsum(np.where(grown, rows["bytes"][mine], -rows["bytes"][mine]))
        yield device, rows["start"][mine], total - min(0, int(total.min()))


_ROWS = 4_000
"""Read at once: with more of them the values leave the caches of a core before they are used."""
_RANGES = (59, 60)
"""Types of NVTX events with a begin and an end: on a thread, and across threads."""
_COPIES = {
    1: "h2d",
    2: "d2h",
    3: "h2a",
    4: "a2h",
    5: "a2a",
    6: "a2d",
    7: "d2a",
    8: "d2d",
    9: "h2h",
    10: "p2p",
    11: "unified h2d",
    12: "unified d2h",
    13: "unified d2d",
}
"""Kinds of copies by CUPTI's numbers (ENUM_CUDA_MEMCPY_OPER)."""
_PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_TEXT = ("text", "jsonText")


def read_nsys(path: Path) -> Source:
    """The processes of a report in the order of their ids; TraceError if it is damaged or none."""
    try:
        # Immutable: a report may lie in a folder that cannot be written.
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            return _Report(path, database).read()
        finally:
            database.close()
    except sqlite3.DatabaseError as error:
        raise unusable(
            path,
            f"is damaged, or not a report of Nsight Systems ({error})",
            "export it again: nsys export --type=sqlite REPORT.nsys-rep",
        ) from None


class _Report:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self.database = database
        self.database.text_factory = partial(str, encoding="utf-8", errors="replace")
        named = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        self.tables = {name for (name,) in database.execute(named)}
        self.processes: dict[int, ProcessTrace] = {}
        self.left_out = LeftOut()
        self.launched = 0

    def read(self) -> Source:
        if "StringIds" not in self.tables:
            raise unusable(
                self.path,
                "is an SQLite database, but not a report of Nsight Systems: it has no StringIds",
                "export the report: nsys export --type=sqlite REPORT.nsys-rep",
            )
        known = "SELECT id, value FROM StringIds WHERE typeof(id) = 'integer'"
        texts = self.database.execute(f"{known} AND typeof(value) = 'text'")
        self.texts: dict[int, str] = dict(texts)
        with Progress(f"Read {self.path.name}", "rows") as self.progress:
            self._kernels()
            self._copies()
            self._graphs()
            launches = self._launches()
            self._ranges()
            self._memory()
        notes = self.left_out.notes()
        for trace in self.processes.values():
            trace.settle()
            notes += trace.left_out.notes()
        ordered = [self.processes[pid] for pid in sorted(self.processes)]
        if launches and not any(len(trace.device) for trace in ordered):
            told = f" ({'; '.join(notes)})" if notes else ""
            raise unusable(
                self.path,
                f"holds {launches:,} calls of CUDA, but no kernel{told}",
                "record with --trace=cuda, as a user who may use the GPU's counters",
            )
        if self.launched and ordered:
            notes += without_kernels(ordered, self.launched)
        return Source("nsys", self._version(), ordered, notes)

    def _kernels(self) -> None:
        for rows in self._columns(
            "CUPTI_ACTIVITY_KIND_KERNEL", *_PLACE, "demangledName", "shortName", "graphId"
        ):
            known = np.isin(rows["demangledName"], list(self.texts))
            number = np.where(known, rows["demangledName"], rows["shortName"])
            names = self._texts(number, "unknown kernel")
            self._device_events("kernel", rows, names, graph=rows["graphId"])

    def _copies(self) -> None:
        for rows in self._columns("CUPTI_ACTIVITY_KIND_MEMCPY", *_PLACE, "bytes", "copyKind"):
            kinds = [_COPIES.get(number, "unknown") for number in rows["copyKind"].tolist()]
            names = [f"copy {kind}" for kind in kinds]
            self._device_events("memcpy", rows, names, bytes=rows["bytes"], copy=kinds)
        for rows in self._columns("CUPTI_ACTIVITY_KIND_MEMSET", *_PLACE, "bytes"):
            names = ["memory set"] * len(rows["start"])
            self._device_events("memset", rows, names, bytes=rows["bytes"])

    def _graphs(self) -> None:
        """CUDA graphs that were recorded as a whole (``--cuda-graph-trace=graph``)."""
        for rows in self._columns("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *_PLACE, "graphId"):
            names = [f"CUDA graph {number}" for number in rows["graphId"].tolist()]
            self._device_events("graph", rows, names, graph=rows["graphId"])

    def _device_events(
        self, kind: str, rows: dict[str, Integers], names: list[str], **more: Integers | list[str]
    ) -> None:
        good = self._fine(rows, "deviceId", "streamId")
        labels = np.array(names, object)
        for pid in np.unique(_process(rows["globalPid"][good])).tolist():
            trace = self._process(pid)
            mine = good & (_process(rows["globalPid"]) == pid)
            ids = trace.names
            columns = {
                name: ids.of(np.array(values, object)[mine])
                if isinstance(values, list)
                else values[mine]
                for name, values in more.items()
            }
            trace.device.extend(
                int(mine.sum()),
                kind=ids[kind],
                name=ids.of(labels[mine]),
                device=rows["deviceId"][mine],
                context=rows["contextId"][mine],
                stream=rows["streamId"][mine],
                t0=rows["start"][mine],
                t1=rows["end"][mine],
                correlation=rows["correlationId"][mine],
                **columns,
            )

    def _fine(self, rows: dict[str, Integers], *needed: str) -> np.ndarray:
        """The rows that have what they need and end after they begin; the others are counted."""
        whole = np.ones(len(rows["start"]), np.bool_)
        for name in ("start", "end", *needed):
            whole &= rows[name] != NULL
        forward = rows["end"] >= rows["start"]
        self.left_out.add("a value is missing or not a whole number", int((~whole).sum()))
        early = whole & forward & (rows["start"] < 0)
        self.left_out.add("they end before they begin", int((whole & ~forward).sum()))
        self.left_out.add("they begin before the recording", int(early.sum()))
        return whole & forward & ~early

    def _launches(self) -> int:
        count = 0
        # Names of calls end in the version of their interface: cudaDeviceSynchronize_v3020.
        known = [n for n, text in self.texts.items() if waits(text.partition("_v")[0])]
        launching = [n for n, text in self.texts.items() if LAUNCH_NAME.match(text)]
        for rows in self._columns(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId", "end", "nameId"
        ):
            good = np.all(
                [rows[name] != NULL for name in ("start", "globalTid", "correlationId")], axis=0
            )
            waiting = good & np.isin(rows["nameId"], known) & (rows["end"] >= rows["start"])
            count += int(good.sum())
            self.launched += int(np.isin(rows["nameId"][good], launching).sum())
            for pid in np.unique(_process(rows["globalTid"][good])).tolist():
                of_process = _process(rows["globalTid"]) == pid
                mine = good & of_process
                self._process(pid).launches.extend(
                    int(mine.sum()),
                    correlation=rows["correlationId"][mine],
                    thread=_thread(rows["globalTid"][mine]),
                    t0=rows["start"][mine],
                )
                mine = waiting & of_process
                self._process(pid).waits.extend(
                    int(mine.sum()),
                    thread=_thread(rows["globalTid"][mine]),
                    t0=rows["start"][mine],
                    t1=rows["end"][mine],
                )
        return count

    def _memory(self) -> None:
        parts = list(self._columns(MEMORY_TABLE, *MEMORY_COLUMNS))
        if not parts:
            return
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        pids = _process(rows["globalPid"])
        for pid in np.intersect1d(pids, list(self.processes)).tolist():
            mine = {name: values[pids == pid] for name, values in rows.items()}
            for device, t0, total in allocated(mine):
                memory = self.processes[pid].memory
                memory.extend(len(t0), t0=t0, device=device, allocated=total)

    def _ranges(self) -> None:
        numbers = ("start", "end", "globalTid", "eventType", "textId", "jsonTextId")
        unfinished = 0
        for values in self._values("NVTX_EVENTS", *numbers, *_TEXT):
            t0, t1, thread, kind, *_ = (_integers(values[name]) for name in numbers)
            known = np.isin(kind, _RANGES) & (t0 != NULL) & (thread != NULL)
            unfinished += int((known & (t1 == NULL)).sum())
            known &= t1 >= t0
            for pid in np.unique(_process(thread[known])).tolist():
                mine = np.flatnonzero(known & (_process(thread) == pid))
                places = mine.tolist()
                names = [self._told(values["text"][k], values["textId"], k) or "" for k in places]
                payload = partial(self._payload, values, places)
                found = Ranges(_thread(thread[mine]), t0[mine], t1[mine], names, payload)
                add_ranges(self._process(pid), found)
        self.left_out.add("NVTX ranges that never end", unfinished)

    def _payload(self, values: dict[str, Sequence[Any]], places: list[int], k: int) -> str | None:
        return self._told(values["jsonText"][places[k]], values["jsonTextId"], places[k])

    def _told(self, text: Any, ids: Sequence[Any], place: int) -> str | None:
        """A text, which stands in the row or among those of the report."""
        return text if type(text) is str else self.texts.get(ids[place])

    def _texts(self, numbers: Integers, otherwise: str) -> list[str]:
        return [self.texts.get(number) or otherwise for number in numbers.tolist()]

    def _process(self, pid: int) -> ProcessTrace:
        if pid not in self.processes:
            self.processes[pid] = ProcessTrace(pid)
        return self.processes[pid]

    def _columns(self, table: str, *columns: str) -> Iterator[dict[str, Integers]]:
        """A table of numbers, piece by piece; what is not there, or no whole number, is null."""
        for values in self._values(table, *columns):
            yield {name: _integers(column) for name, column in values.items()}

    def _values(self, table: str, *columns: str) -> Iterator[dict[str, Sequence[Any]]]:
        """The values of a table as they are, piece by piece; None in columns that it lacks."""
        if table not in self.tables:
            return
        there = {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}
        known = [name for name in columns if name in there]
        listed = ", ".join(f'"{name}"' for name in known)
        cursor = self.database.execute(f'SELECT {listed or "NULL"} FROM "{table}"')
        while rows := cursor.fetchmany(_ROWS):
            self.progress.update(len(rows))
            found = dict(zip(known, zip(*rows, strict=True), strict=False))
            yield {name: found.get(name, (None,) * len(rows)) for name in columns}

    def _version(self) -> str | None:
        """Version of the tool; the table of it has two names."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            found = dict(self._meta(table))
            if version := found.get("EXPORT_PRODUCT_VERSION") or found.get("EXPORT_SCHEMA_VERSION"):
                return str(version)
        return None

    def _meta(self, table: str) -> list[tuple[str, str]]:
        if table not in self.tables:
            return []
        return self.database.execute(
            f"SELECT name, value FROM \"{table}\" WHERE name LIKE 'EXPORT_%_VERSION'"
        ).fetchall()


def _process(number: Integers) -> Integers:
    """The process of a globalPid or globalTid: its id stands in bits 24 to 47; 0 for null."""
    return np.where(number == NULL, 0, (number >> 24) & 0xFFFFFF)


def _integers(values: Sequence[Any]) -> Integers:
    """A column of numbers; null for what is no whole number."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except TypeError:
        return np.array([v if type(v) is int else NULL for v in values], np.int64)


def _thread(number: Integers) -> Integers:
    return number & 0xFFFFFF
