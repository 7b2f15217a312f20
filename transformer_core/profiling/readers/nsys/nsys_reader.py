"""Reader of the SQLite exports of Nsight Systems, 2022 to 2026.

A table is there only if it has rows, columns come and go between versions, and the order of rows is
not guaranteed. One file may hold several processes: everything is kept apart by process.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_core.common.progress import Progress
from transformer_core.profiling.readers.columns import NULL, Integers
from transformer_core.profiling.readers.left_out import LeftOut
from transformer_core.profiling.readers.nsys import nsys_memory
from transformer_core.profiling.readers.nsys.nsys_ranges import Range, add_range
from transformer_core.profiling.readers.process_trace import ProcessTrace, without_kernels
from transformer_core.profiling.readers.trace_kind import Source, unusable
from transformer_core.profiling.readers.waiting_calls import LAUNCH_NAME, waits

_ROWS = 50_000
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
        self.database.text_factory = lambda text: text.decode("utf-8", "replace")
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
        self.texts = {number: str(text) for number, text in self.database.execute(known)}
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
            raise unusable(
                self.path,
                f"holds {launches:,} calls of CUDA, but no kernel",
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
        parts = list(self._columns(nsys_memory.TABLE, *nsys_memory.COLUMNS))
        if not parts:
            return
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        pids = _process(rows["globalPid"])
        for pid in np.intersect1d(pids, list(self.processes)).tolist():
            mine = {name: values[pids == pid] for name, values in rows.items()}
            for device, t0, total in nsys_memory.allocated(mine):
                memory = self.processes[pid].memory
                memory.extend(len(t0), t0=t0, device=device, allocated=total)

    def _ranges(self) -> None:
        names = ("start", "end", "eventType", "globalTid", "textId", "text", "jsonText")
        unfinished = 0
        for rows in self._rows("NVTX_EVENTS", *names, "jsonTextId"):
            for t0, t1, kind, thread, text_id, text, payload, payload_id in rows:
                if kind not in _RANGES or NULL in (t0, thread):
                    continue
                if t1 == NULL:
                    unfinished += 1
                elif t1 >= t0:
                    name = text if text is not None else self.texts.get(text_id, "")
                    payload = payload or self.texts.get(payload_id)
                    owner = self._process((thread >> 24) & 0xFFFFFF)
                    add_range(owner, Range(thread & 0xFFFFFF, t0, t1, name, payload))
        self.left_out.add("NVTX ranges that never end", unfinished)

    def _texts(self, numbers: Integers, otherwise: str) -> list[str]:
        return [self.texts.get(number) or otherwise for number in numbers.tolist()]

    def _process(self, pid: int) -> ProcessTrace:
        if pid not in self.processes:
            self.processes[pid] = ProcessTrace(pid)
        return self.processes[pid]

    def _columns(self, table: str, *columns: str) -> Iterator[dict[str, Integers]]:
        """A table of numbers, piece by piece; a column that is not there is null."""
        for rows in self._rows(table, *columns):
            values = np.array(rows, np.int64)
            yield {name: values[:, place] for place, name in enumerate(columns)}

    def _rows(self, table: str, *columns: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a table, piece by piece. What is no whole number is null, but for texts."""
        if table not in self.tables:
            return
        known = {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}
        chosen = []
        for name in columns:
            if name not in known:
                chosen.append("NULL" if name in _TEXT else str(NULL))
            elif name in _TEXT:
                chosen.append(f'CASE typeof("{name}") WHEN \'text\' THEN "{name}" END')
            else:
                whole = f'CASE typeof("{name}") WHEN \'integer\' THEN "{name}" ELSE {NULL} END'
                chosen.append(whole)
        cursor = self.database.execute(f'SELECT {", ".join(chosen)} FROM "{table}"')
        while rows := cursor.fetchmany(_ROWS):
            self.progress.update(len(rows))
            yield rows

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


def _thread(number: Integers) -> Integers:
    return number & 0xFFFFFF
