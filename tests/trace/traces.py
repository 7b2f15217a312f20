"""Small traces for tests: SQLite reports of Nsight Systems by generation, Kineto JSON, rows."""

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.results import Breakdown, DeviceBreakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.breakdown.devices import break_down_all
from transformer_core.trace.events import event_table as events
from transformer_core.trace.events.arrow import SCHEMA, events_of, table_of
from transformer_core.trace.readers.files import read_files

PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId")
GENERATIONS: dict[str, dict[str, Any]] = {
    "2022": {
        "meta": ("EXPORT_META_DATA", "EXPORT_SCHEMA_VERSION", "2.7.1"),
        "extra": ("graphNodeId",),
        "json": False,
    },
    "2024": {
        "meta": ("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION", "2024.4.1"),
        "extra": ("graphNodeId", "launchType"),
        "json": True,
    },
    "2026": {
        "meta": ("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION", "2026.2.1"),
        "extra": ("greenContextId", "graphNodeId", "graphId"),
        "json": True,
    },
}
"""The differences between exports: the metadata table, further columns, NVTX payloads."""


def break_down(table: events.Events) -> list[DeviceBreakdown]:
    """The devices of an event table."""
    return break_down_all(events.rows_of(table))[0]


def rows_in(*files: Path) -> events.Rows:
    """The events of files."""
    return events.rows_of(read_files(list(files)).events)


def device_in(*files: Path) -> DeviceBreakdown:
    """The one device of files."""
    (found,) = break_down(read_files(list(files)).events)
    return found


def global_id(pid: int, tid: int = 0) -> int:
    """A globalPid or globalTid of Nsight Systems."""
    return (3 << 48) | (pid << 24) | tid


class Report:
    """A report under construction. As in real ones, tables are created with their first row."""

    def __init__(self, path: Path, generation: str = "2026") -> None:
        self.path = path
        self.database = sqlite3.connect(path)
        self.database.execute("PRAGMA synchronous = OFF")
        self.generation = GENERATIONS[generation]
        self.texts: dict[str, int] = {}
        self.table("StringIds", ["id", "value"])
        table, key, version = self.generation["meta"]
        self.insert(table, {"name": key, "value": version})

    def table(self, name: str, columns: Iterable[str]) -> None:
        listed = ", ".join(f'"{column}"' for column in columns)
        self.database.execute(f'CREATE TABLE IF NOT EXISTS "{name}" ({listed})')

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        extra = self.generation["extra"] if table.startswith("CUPTI_ACTIVITY_KIND_K") else ()
        self.table(table, [*row, *extra])
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join("?" * len(row))
        values = list(row.values())
        self.database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', values)

    def text(self, value: str) -> int:
        if value not in self.texts:
            self.texts[value] = 1000 + len(self.texts)
            self.insert("StringIds", {"id": self.texts[value], "value": value})
        return self.texts[value]

    def _event(self, kind: str, told: dict[str, int], t0: int, t1: int, **place: int) -> None:
        """An event on a device; ``place`` holds pid and correlation, perhaps device and stream."""
        where = (place.get("device", 0), 1, place.get("stream", 7), place["correlation"])
        row = dict(zip(PLACE, (t0, t1, *where), strict=True))
        row |= {"globalPid": global_id(place["pid"])}
        self.insert(f"CUPTI_ACTIVITY_KIND_{kind}", row | told)

    def kernel(self, name: str, t0: int, t1: int, **place: int) -> None:
        names = {"demangledName": self.text(name), "shortName": self.text(name[:12])}
        self._event("KERNEL", names, t0, t1, **place)

    def copy(self, kind: int, size: int, t0: int, t1: int, **place: int) -> None:
        self._event("MEMCPY", {"bytes": size, "copyKind": kind}, t0, t1, **place)

    def graph(self, graph: int, t0: int, t1: int, **place: int) -> None:
        self._event("GRAPH_TRACE", {"graphId": graph}, t0, t1, **place)

    def launch(self, correlation: int, t0: int, *, pid: int, tid: int) -> None:
        row = {"start": t0, "end": t0 + 1, "globalTid": global_id(pid, tid)}
        row |= {"correlationId": correlation, "nameId": self.text("cudaLaunchKernel")}
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", row)

    def range(
        self,
        name: str,
        t0: int,
        t1: int | None,
        *,
        pid: int,
        tid: int,
        registered: bool = False,
    ) -> None:
        row: dict[str, Any] = {"start": t0, "end": t1, "eventType": 59}
        row |= {"text": None if registered else name, "globalTid": global_id(pid, tid)}
        row |= {"textId": self.text(name) if registered else None}
        if self.generation["json"]:
            row["jsonText"] = None
        self.insert("NVTX_EVENTS", row)

    def write(self) -> Path:
        self.database.commit()
        self.database.close()
        return self.path


def one_kernel(path: Path, name: str, *, around: str = "", **more: Any) -> Report:
    """One kernel of process 7, launched inside a range named ``around``, if given."""
    report = Report(path)
    if around:
        report.range(around, 0, 500, pid=7, tid=1, **more)
    report.launch(1, 100, pid=7, tid=1)
    report.kernel(name, 200, 400, pid=7, correlation=1)
    return report


def training_report(path: Path, generation: str = "2026", pids: Sequence[int] = (100,)) -> Path:
    """One step on each process: a product, an all-reduce that overlaps it, an update, a copy.

    The all-reduce of the second process runs 30 ns longer. Correlation ids are the same in all.
    """
    report = Report(path, generation)
    for place, pid in enumerate(pids):
        late = 30 * place
        main, autograd = 1, 2
        report.range("phase:step", 0, 1000, pid=pid, tid=main)
        report.range("phase:forward", 100, 200, pid=pid, tid=main, registered=True)
        report.range("phase:backward", 200, 500, pid=pid, tid=main)
        report.range("phase:optimizer", 500, 900, pid=pid, tid=main)
        report.range("aten::mm, op_id = 3, sizes = [[4, 5], [5, 6]]", 110, 130, pid=pid, tid=main)
        report.range("nccl:all_reduce", 250, 270, pid=pid, tid=autograd)
        for correlation, tid, time in ((1, main, 120), (2, autograd, 260), (3, main, 600)):
            report.launch(correlation, time, pid=pid, tid=tid)
        report.launch(4, 700, pid=pid, tid=main)
        # Later events first: the order of rows is not guaranteed.
        report.kernel("adam", 650, 700, pid=pid, correlation=3, device=place)
        report.kernel("ampere_sgemm", 200, 400, pid=pid, correlation=1, device=place)
        report.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
            300,
            500 + late,
            pid=pid,
            correlation=2,
            stream=20,
            device=place,
        )
        report.copy(1, 64, 700, 720, pid=pid, correlation=4, device=place)
    return report.write()


@cache
def _report_of_training() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return training_report(Path(folder, "report.sqlite")).read_bytes()


def changed_report(path: Path, *statements: str) -> Path:
    """The report of a training after some statements of SQL."""
    path.write_bytes(_report_of_training())
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def kineto(
    path: Path, rows: Sequence[Mapping[str, Any]], *, after: bool = False, **head: Any
) -> Path:
    """A Kineto trace; ``after`` puts the head after the events, as some versions do."""
    body = {"traceEvents": list(rows)}
    whole = {**body, "schemaVersion": 1, **head} if after else {"schemaVersion": 1, **head, **body}
    text = json.dumps(whole).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def complete(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """A complete event of Kineto on the host; ``tid`` in ``args`` is its thread."""
    tid = args.pop("tid", 1)
    row = {"ph": "X", "cat": category, "name": name, "pid": 42, "tid": tid, "ts": ts, "dur": dur}
    return row | {"args": args}


def launch(correlation: int, ts: float, tid: int = 1) -> dict[str, Any]:
    """A call of Kineto that launches a kernel."""
    about = {"tid": tid, "correlation": correlation}
    return complete("cuda_runtime", "cudaLaunchKernel", ts, 1, **about)


def on_device(
    category: str, name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any
) -> dict[str, Any]:
    """A device event of Kineto."""
    args = {"device": 0, "context": 1, "stream": stream, "correlation": correlation} | args
    return complete(category, name, ts, dur, tid=stream, **args) | {"pid": 0}


def allocated(at: float, size: int) -> dict[str, Any]:
    """An event of the allocator of Kineto."""
    args = {"Device Type": 1, "Device Id": 0, "Total Allocated": size}
    row = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "pid": 42}
    return row | {"tid": 1, "args": args}


def of_rank(rank: int, ranks: int = 2, **more: Any) -> dict[str, Any]:
    """The head of the trace of a rank."""
    return {"distributedInfo": {"rank": rank, "world_size": ranks} | more}


def events_in(*files: Path) -> list[dict[str, Any]]:
    """The rows of the event table of files."""
    return table_in(*files).to_pylist()


def table_in(*files: Path) -> pa.Table:
    """The event table of files, as Arrow has it."""
    return table_of(read_files(list(files)).events)


def breakdown_in(folder: Path, *words: object) -> Breakdown:
    """The breakdown that the command writes for these words."""
    output = folder / "out.json"
    assert main([*map(str, words), "--output", str(output)]) == 0
    return Breakdown.model_validate_json(output.read_text())


def event_table(rows: Sequence[Mapping[str, Any]]) -> events.Events:
    """Rows of the event table; missing values are null, except for rank, pid, stream, device, kind."""
    columns = []
    for field in SCHEMA:
        usual = {"rank": 0, "pid": 1, "stream": 7, "device": "cuda:0", "kind": "kernel"}
        values = [{**usual, **row}.get(field.name) for row in rows]
        kind = pa.string() if pa.types.is_dictionary(field.type) else field.type
        column = pa.array(values, kind)
        columns.append(column.dictionary_encode() if pa.types.is_dictionary(field.type) else column)
    return events_of(pa.Table.from_arrays(columns, schema=SCHEMA))


def work(name: str, t0: int, t1: int, **more: Any) -> dict[str, Any]:
    """A row of a computing kernel."""
    return {"name": name, "t0_ns": t0, "t1_ns": t1, "class": events.COMPUTE} | more


def talk(collective: str, t0: int, t1: int, **more: Any) -> dict[str, Any]:
    """A row of a communicating kernel."""
    row = {"name": collective, "collective": collective, "class": events.COMMUNICATION}
    return row | {"t0_ns": t0, "t1_ns": t1, "operator_class": "communication"} | more


def mark(name: str, t0: int, t1: int, **more: Any) -> dict[str, Any]:
    """A row of a range on the host."""
    row = {"name": name, "kind": "range", "t0_ns": t0, "t1_ns": t1, "device": None}
    return row | {"stream": None, "class": None} | more
