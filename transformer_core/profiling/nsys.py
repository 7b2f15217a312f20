"""Reader of the SQLite exports of Nsight Systems, 2022 to 2026.

A table is there only if it has rows, columns come and go between versions, and the order of rows is
not guaranteed. One file may hold several processes: everything is kept apart by process.
"""

import ast
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer_core.data.progress import Progress
from transformer_core.profiling.collectives import collective_of
from transformer_core.profiling.source import Source, unusable
from transformer_core.profiling.trace import ProcessTrace

_MAGIC = b"SQLite format 3\x00"
_ROWS = 50_000
_PUSH_POP, _START_END = 59, 60
_OPERATOR = re.compile(r"([\w.]+::[^,]+|[A-Z]\w*Backward\d*)(, .*)?")
"""A range that torch.autograd.profiler.emit_nvtx sets: ``aten::mm, op_id = 7, sizes = [[…]]``."""
_SIZES = re.compile(r"sizes = (\[.*?\])(?:, input_op_ids|$)")
_COLLECTIVE = re.compile(r"(nccl|gloo|ucc|mpi):.*|nccl[A-Z]\w*")
_PAYLOAD_BYTES = re.compile(r"message size.*bytes", re.IGNORECASE)
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


def is_sqlite(path: Path) -> bool:
    """Whether a file begins like an SQLite database."""
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def read_nsys(path: Path) -> Source:
    """The processes of a report in the order of their ids; ConfigError if it is damaged or none."""
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
        self.unfinished = 0

    def read(self) -> Source:
        if "StringIds" not in self.tables:
            raise unusable(
                self.path,
                "is an SQLite database, but not a report of Nsight Systems: it has no StringIds",
                "export the report: nsys export --type=sqlite REPORT.nsys-rep",
            )
        self.texts = dict(self.database.execute("SELECT id, value FROM StringIds"))
        with Progress(f"Read {self.path.name}", "rows") as self.progress:
            self._kernels()
            self._copies()
            self._graphs()
            self._launches()
            self._ranges()
        notes = []
        if self.unfinished:
            notes.append(f"{self.unfinished:,} NVTX ranges never end and were left out")
        ordered = [self.processes[pid] for pid in sorted(self.processes)]
        return Source("nsys", self._version(), ordered, notes)

    def _kernels(self) -> None:
        for row in self._rows(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
            *("demangledName", "shortName"),
        ):
            *place, long, short = row
            name = self.texts.get(long) or self.texts.get(short) or "unknown kernel"
            self._device_event("kernel", name, *place)

    def _copies(self) -> None:
        for row in self._rows(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
            *("bytes", "copyKind"),
        ):
            *place, size, number = row
            copy = _COPIES.get(number, "unknown")
            self._device_event("memcpy", f"copy {copy}", *place, size=size, copy_kind=copy)
        for row in self._rows(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
            "bytes",
        ):
            *place, size = row
            self._device_event("memset", "memory set", *place, size=size)

    def _graphs(self) -> None:
        """CUDA graphs that were recorded as a whole (``--cuda-graph-trace=graph``)."""
        for row in self._rows(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
            "graphId",
        ):
            *place, graph = row
            self._device_event("graph", f"CUDA graph {graph}", *place)

    def _device_event(
        self,
        kind: str,
        name: str,
        t0: int,
        t1: int,
        device: int,
        context: int | None,
        stream: int,
        correlation: int | None,
        process: int | None,
        **more: Any,
    ) -> None:
        self._process(process).add_device_event(
            kind,
            name,
            device,
            t0,
            t1,
            stream=stream,
            context=context,
            correlation=correlation,
            **more,
        )

    def _launches(self) -> None:
        for t0, thread, correlation in self._rows(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId"
        ):
            if correlation is not None and thread is not None:
                self._process(thread).add_launch(correlation, _thread(thread), t0)

    def _ranges(self) -> None:
        for t0, t1, kind, text, text_id, thread, payload, payload_id in self._rows(
            "NVTX_EVENTS",
            *("start", "end", "eventType", "text", "textId", "globalTid", "jsonText"),
            "jsonTextId",
        ):
            if kind not in (_PUSH_POP, _START_END) or thread is None:
                continue
            if t1 is None:
                self.unfinished += 1
                continue
            name = text if text is not None else self.texts.get(text_id, "")
            process, place = self._process(thread), (_thread(thread), t0, t1)
            if _COLLECTIVE.fullmatch(name):
                if collective_of(name) != "other":
                    size = _payload_bytes(payload or self.texts.get(payload_id))
                    process.add_collective(*place, name.partition(",")[0], size)
            elif operator := _OPERATOR.fullmatch(name):
                process.add_operator(*place, operator[1], _sizes(operator[2] or ""))
            else:
                process.add_range(*place, name)

    def _process(self, number: int | None) -> ProcessTrace:
        """The process of a globalPid or globalTid: its id stands in bits 24 to 47."""
        pid = 0 if number is None else (number >> 24) & 0xFFFFFF
        if pid not in self.processes:
            self.processes[pid] = ProcessTrace(pid)
        return self.processes[pid]

    def _rows(self, table: str, *columns: str) -> Iterator[Sequence[Any]]:
        """The rows of a table, none if it is not there; a column that is not there is null."""
        if table not in self.tables:
            return
        known = {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}
        chosen = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
        cursor = self.database.execute(f'SELECT {chosen} FROM "{table}"')
        while rows := cursor.fetchmany(_ROWS):
            self.progress.update(len(rows))
            yield from rows

    def _version(self) -> str | None:
        """Version of the tool; the table of it has two names."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            found = dict(self._meta(table))
            if version := found.get("EXPORT_PRODUCT_VERSION") or found.get("EXPORT_SCHEMA_VERSION"):
                return version
        return None

    def _meta(self, table: str) -> list[tuple[str, str]]:
        if table not in self.tables:
            return []
        return self.database.execute(
            f"SELECT name, value FROM \"{table}\" WHERE name LIKE 'EXPORT_%_VERSION'"
        ).fetchall()


def _thread(number: int) -> int:
    return number & 0xFFFFFF


def _sizes(text: str) -> list[Any]:
    """Shapes of the inputs in the text of a range of emit_nvtx; empty where it has none."""
    found = _SIZES.search(text)
    if not found:
        return []
    try:
        sizes = ast.literal_eval(found[1])
    except (SyntaxError, ValueError):
        return []
    return sizes if isinstance(sizes, list) else []


def _payload_bytes(payload: str | None) -> int | None:
    """Size of the message in the payload of NCCL's own ranges; null where there is none."""
    if not payload:
        return None
    try:
        fields = json.loads(payload)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    return next(
        (v for k, v in fields.items() if _PAYLOAD_BYTES.search(k) and isinstance(v, int)), None
    )
