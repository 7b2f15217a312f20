"""Reader of the SQLite exports of Nsight Systems, 2022 to 2026.

Exports omit empty tables, columns differ between versions, and the order of rows is not guaranteed.
One file may hold several processes, which are kept apart.

SQLite joins the values of many rows into one text, which numpy parses: Python would spend most of its
time on converting single fields.
"""

import json
import re
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from transformer_core.common.progress import Progress
from transformer_core.trace.events.collectives import OTHER, collective_of
from transformer_core.trace.events.columns import NULL, Integers, Names, distinct, nulls, or_null
from transformer_core.trace.events.event_table import Mask
from transformer_core.trace.events.process import (
    LAUNCH_NAME,
    NO_SIZE,
    LeftOut,
    NotATrace,
    ProcessTrace,
    Source,
    TraceError,
    group_named,
    waits,
    without_kernels,
)

_EXPORT = "export it again: nsys export --type=sqlite REPORT.nsys-rep"
_OPERATOR = re.compile(r"[\w.]+::[^,]+|[A-Z]\w*Backward\d*")
"""The beginning of a range of torch.autograd.profiler.emit_nvtx:
``aten::mm, seq = 3, op_id = 7, sizes = [[…]]``."""
_SIZES = re.compile(r"sizes = (\[.*?\])(?:, input_op_ids|$)")
_SEQUENCE = re.compile(r"\bseq = ([0-9]{1,18})\b")
_COLLECTIVE = re.compile(r"(nccl|rccl|gloo|ucc|mpi):.*|nccl[A-Z]\w*")
_PAYLOAD_BYTES = re.compile(r"message size.*bytes", re.IGNORECASE)
_PAYLOAD_GROUP = re.compile(r"communicator id", re.IGNORECASE)


def _payload(payload: str | None) -> tuple[int | None, int | None]:
    """Message size and communicator in the payload of NCCL's ranges; null if missing."""
    try:
        fields = json.loads(payload or "{}")
    except (ValueError, RecursionError):
        fields = {}
    numbers = {k: v for k, v in fields.items() if type(v) is int} if type(fields) is dict else {}
    size, group = (
        next((number for key, number in numbers.items() if pattern.search(key)), None)
        for pattern in (_PAYLOAD_BYTES, _PAYLOAD_GROUP)
    )
    return size, group


_ON_DEVICE = (2, 3, 5)
"""Device, array and static memory, which are on the device (ENUM_CUDA_MEM_KIND)."""
_ALLOCATION, _RELEASE = 0, 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER


def _allocated(rows: dict[str, Integers]) -> Iterator[tuple[int, Integers, Integers]]:
    """Yields device, times and the bytes allocated after each, from the events of one process.

    These are calls of the driver; a framework's own allocator makes few. Memory allocated before the
    recording counts if it is released during the recording.
    """
    good = np.isin(rows["memKind"], _ON_DEVICE) & (rows["start"] != NULL)
    good &= np.isin(rows["memoryOperationType"], (_ALLOCATION, _RELEASE))
    good &= (rows["bytes"] >= 0) & (rows["bytes"] < NO_SIZE) & (rows["deviceId"] >= 0)
    order = np.argsort(rows["start"], kind="stable")
    order = order[good[order]]
    for device in np.unique(rows["deviceId"][order]).tolist():
        mine = order[rows["deviceId"][order] == device]
        grown = rows["memoryOperationType"][mine] == _ALLOCATION
        total = np.cumsum(np.where(grown, rows["bytes"][mine], -rows["bytes"][mine]))
        yield device, rows["start"][mine], total - min(0, int(total.min()))


_ROWS = 1 << 13  # read at once
_SEPARATOR = "\x1f"  # between joined texts; inside a text, a space replaces it
_NUMBERED = "\x1e"  # before the number of a text in the report's table of texts
_LONGEST_TEXT = 1 << 26  # bytes of one text, or of the texts read at once
_WORK_AT_ONCE = 1 << 20
_WORK_PER_BYTE = 100
"""Instructions of SQLite's virtual machine per byte of a file. Reading takes some ten; a file that
needs more is malformed, and reading it might never end."""
_MARKS, _OPERATES, _TALKS = range(3)
_A_RANGE = "eventType IN (59, 60)"
"""NVTX events with a begin and an end, on one thread or across threads."""
_COPIES = (
    *("h2d", "d2h", "h2a", "a2h", "a2a", "a2d", "d2a", "d2d", "h2h", "p2p"),
    *("unified h2d", "unified d2h", "unified d2d"),
)
"""Kinds of copies in the order of CUPTI's numbers, from 1 (ENUM_CUDA_MEMCPY_OPER)."""
_COLUMNS = {
    "device": "deviceId",
    "context": "contextId",
    "stream": "streamId",
    "t0": "start",
    "t1": "end",
    "correlation": "correlationId",
    "bytes": "bytes",
    "graph": "graphId",
    "node": "graphNodeId",
}
"""Columns of device events, and their names in a report; older reports lack the graph."""
_READ = ("globalPid", *_COLUMNS.values())


def read_nsys(path: Path) -> Source[ProcessTrace]:
    """Reads the processes of a report, in the order of their ids; TraceError if it is damaged or not a
    report."""
    try:
        # Immutable: a report may lie in a folder that cannot be written.
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            return _Report(path, database).read()
        finally:
            database.close()
    except sqlite3.DatabaseError as error:
        reason = f"is damaged, or not a report of Nsight Systems ({error})"
        if "interrupted" in str(error):
            reason = "takes more work to read than its size explains, so reading was stopped"
        raise TraceError(path, reason, _EXPORT) from None


class _Report:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self.database = database
        database.text_factory = partial(str, encoding="utf-8", errors="replace")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
        database.execute("PRAGMA trusted_schema = OFF")
        self._left = (path.stat().st_size * _WORK_PER_BYTE // _WORK_AT_ONCE) + 64
        database.set_progress_handler(self._spent, _WORK_AT_ONCE)
        # Views and virtual tables have no pages, and queries of them may never end.
        named = "SELECT name, rootpage > 0 FROM sqlite_master WHERE type IN ('table', 'view')"
        self.tables: dict[str, bool] = dict(database.execute(named))
        self.processes: dict[int, ProcessTrace] = {}
        self.left_out = LeftOut()
        self.launched = 0

    def _spent(self) -> bool:
        """SQLite calls it regularly; returns whether to stop."""
        self._left -= 1
        return self._left < 0

    def read(self) -> Source[ProcessTrace]:
        if not self._columns_of("StringIds"):
            raise NotATrace(
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
            raise TraceError(
                self.path,
                f"has CUDA calls ({launches:,}) but no kernels{told}",
                "record with --trace=cuda, as a user who may read the GPU's counters",
            )
        notes += without_kernels(ordered, self.launched)
        return Source("nsys", self._version(), ordered, notes)

    def _kernels(self) -> None:
        names = ("demangledName", "shortName")
        for rows in self._columns("CUPTI_ACTIVITY_KIND_KERNEL", *_READ, *names):
            numbers = zip(*(rows[name].tolist() for name in names), strict=True)
            labels = [
                self.texts.get(whole) or self.texts.get(short) or "unknown kernel"
                for whole, short in numbers
            ]
            self._device_events("kernel", rows, labels)

    def _copies(self) -> None:
        kinds = dict(enumerate(_COPIES, start=1))
        for rows in self._columns("CUPTI_ACTIVITY_KIND_MEMCPY", *_READ, "copyKind"):
            copies = [kinds.get(number, "unknown") for number in rows["copyKind"].tolist()]
            self._device_events("memcpy", rows, [f"copy {kind}" for kind in copies], copies)
        for rows in self._columns("CUPTI_ACTIVITY_KIND_MEMSET", *_READ):
            self._device_events("memset", rows, ["memory set"] * len(rows["start"]))

    def _graphs(self) -> None:
        """CUDA graphs recorded as a whole (``--cuda-graph-trace=graph``)."""
        for rows in self._columns("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *_READ):
            names = [f"CUDA graph {number}" for number in rows["graphId"].tolist()]
            self._device_events("graph", rows, names)

    def _device_events(
        self, kind: str, rows: dict[str, Integers], names: list[str], copies: Sequence[str] = ()
    ) -> None:
        good = self._fine(rows)
        labels, copied = np.array(names, object), np.array(copies, object)
        for trace, mine in self._by_process(rows["globalPid"], good):
            trace.device.extend(
                copy=trace.names.of(copied[mine]) if copies else NULL,
                kind=trace.names[kind],
                name=trace.names.of(labels[mine]),
                **{name: rows[column][mine] for name, column in _COLUMNS.items()},
            )

    def _fine(self, rows: dict[str, Integers]) -> Mask:
        """Marks the device events with a device, a stream and possible times; counts the others."""
        needed = ("start", "end", "deviceId", "streamId")
        whole: Mask = np.all([rows[name] != NULL for name in needed], axis=0)
        forward = rows["end"] >= rows["start"]
        self.left_out.add("a value is missing or not a whole number", int((~whole).sum()))
        early = whole & forward & (rows["start"] < 0)
        self.left_out.add("they end before they begin", int((whole & ~forward).sum()))
        self.left_out.add("they begin before the recording", int(early.sum()))
        return whole & forward & ~early

    def _launches(self) -> int:
        count = 0
        # Names of calls end with the version of the API: cudaDeviceSynchronize_v3020.
        known = [n for n, text in self.texts.items() if waits(text.partition("_v")[0])]
        launching = [n for n, text in self.texts.items() if LAUNCH_NAME.match(text)]
        for rows in self._columns(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId", "end", "nameId"
        ):
            needed = ("start", "globalTid", "correlationId")
            good = np.all([rows[name] != NULL for name in needed], axis=0)
            waiting = good & np.isin(rows["nameId"], known) & (rows["end"] >= rows["start"])
            count += int(good.sum())
            self.launched += int(np.isin(rows["nameId"][good], launching).sum())
            at = {"thread": _thread(rows["globalTid"]), "t0": rows["start"], "t1": rows["end"]}
            for trace, mine in self._by_process(rows["globalTid"], good):
                place = {name: values[mine] for name, values in at.items() if name != "t1"}
                trace.launches.extend(correlation=rows["correlationId"][mine], **place)
                mine &= waiting
                trace.waits.extend(**{name: values[mine] for name, values in at.items()})
        return count

    def _memory(self) -> None:
        columns = ("start", "deviceId", "bytes", "memKind", "memoryOperationType", "globalPid")
        parts = list(self._columns("CUDA_GPU_MEMORY_USAGE_EVENTS", *columns))
        if not parts:
            return
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        pids = _process(rows["globalPid"])
        for pid in np.intersect1d(pids, list(self.processes)).tolist():
            mine = {name: values[pids == pid] for name, values in rows.items()}
            for device, t0, total in _allocated(mine):
                memory = self.processes[pid].memory
                memory.extend(t0=t0, device=device, allocated=total)

    def _ranges(self) -> None:
        """Reads NVTX ranges: operators of PyTorch, collectives of NCCL, and ranges of the program."""
        columns = ("start", "end", "globalTid")
        unfinished = 0
        for rows, text, edges in self._stretches("NVTX_EVENTS", columns, "text", _A_RANGE):
            known = (rows["start"] != NULL) & (rows["globalTid"] != NULL)
            unfinished += int((known & (rows["end"] == NULL)).sum())
            known &= rows["end"] >= rows["start"]
            self._add_ranges(rows, text, known, edges)
        self.left_out.add("NVTX ranges that never end", unfinished)

    def _add_ranges(
        self, rows: dict[str, Integers], text: str, known: Mask, edges: tuple[int, int]
    ) -> None:
        """Adds operators, collectives and other ranges.

        Most ranges are operators with different texts, so only the part before the first comma is
        looked up; sizes and sequence numbers are searched for in the rest.
        """
        texts = text.split(_SEPARATOR)
        if _NUMBERED in text:
            texts = [
                self.texts.get(int(one[1:]), "")
                if one[:1] == _NUMBERED and one[1:].isdecimal()
                else one
                for one in texts
            ]
            text = _SEPARATOR.join(texts)
        heads = Names()
        head = heads.of([one.partition(", ")[0] for one in texts])
        kinds = np.array([_kind(one) for one in heads.texts], np.int8)[head]
        # A range whose text begins like a collective's is one only if all of it matches.
        for place in np.flatnonzero(kinds == _TALKS).tolist():
            if not _COLLECTIVE.fullmatch(texts[place]):
                kinds[place] = _MARKS
        talks = np.flatnonzero(known & (kinds == _TALKS)).tolist()
        payloads = self._payloads(edges) if talks else []
        for place in talks:
            self._add_collective(
                {n: int(rows[n][place]) for n in rows}, texts[place], payloads[place]
            )
        at = {"thread": _thread(rows["globalTid"]), "t0": rows["start"], "t1": rows["end"]}
        for trace, mine in self._by_process(rows["globalTid"], known):
            marks, works = (np.flatnonzero(mine & (kinds == kind)) for kind in (_MARKS, _OPERATES))
            trace.ranges.extend(
                **{name: values[marks] for name, values in at.items()},
                name=trace.names.of([texts[place] for place in marks.tolist()]),
            )
            trace.operators.extend(
                **{name: values[works] for name, values in at.items()},
                name=_renumbered(head[works], heads, trace.names),
                call=_calls(trace, texts, works) if "sizes = " in text else 0,
                sequence=_sequences(texts, works) if "seq = " in text else -1,
            )

    def _add_collective(self, row: dict[str, int], text: str, payload: str | None) -> None:
        if collective_of(text) == OTHER:
            return
        thread = np.array(row["globalTid"])
        trace = self._process(int(_process(thread)))
        size, group = _payload(payload)
        members = NULL if group is None else trace.names[group_named(str(group))]
        number = trace.names[text.partition(",")[0]]
        times = (int(_thread(thread)), row["start"], row["end"])
        trace.collectives.add(*times, number, or_null(size), NULL, members, 0)

    def _payloads(self, edges: tuple[int, int]) -> list[str | None]:
        """The payloads of some ranges, which few have and only NCCL's need."""
        there = self._columns_of("NVTX_EVENTS")
        listed = ", ".join(name if name in there else "NULL" for name in ("jsonText", "jsonTextId"))
        query = f"SELECT {listed} FROM NVTX_EVENTS WHERE _rowid_ BETWEEN ? AND ? AND {_A_RANGE}"
        found = self.database.execute(f"{query} ORDER BY _rowid_", edges)
        return [text if type(text) is str else self.texts.get(number) for text, number in found]

    def _process(self, pid: int) -> ProcessTrace:
        if pid not in self.processes:
            self.processes[pid] = ProcessTrace(pid)
        return self.processes[pid]

    def _by_process(self, ids: Integers, chosen: Mask) -> Iterator[tuple[ProcessTrace, Mask]]:
        """The ``chosen`` rows of each process, by their globalPid or globalTid."""
        pids = _process(ids)
        for pid in _few(pids[chosen]):
            yield self._process(pid), chosen & (pids == pid)

    def _columns(self, table: str, *columns: str) -> Iterator[dict[str, Integers]]:
        """A table of numbers, piece by piece; values other than integers are null."""
        return (rows for rows, _, _ in self._stretches(table, columns))

    def _columns_of(self, table: str) -> set[str]:
        """The columns of a table; empty if the table does not exist."""
        if not self.tables.get(table, True):
            raise TraceError(self.path, f"has a view in place of the table {table}", _EXPORT)
        return {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}

    def _stretches(
        self, table: str, columns: Sequence[str], text: str = "", wanted: str = ""
    ) -> Iterator[tuple[dict[str, Integers], str, tuple[int, int]]]:
        """Numbers and joined texts of the ``wanted`` rows of a table, piece by piece, and the range of
        row numbers of each piece.

        Missing values and values of another type are null. A text is empty if it is missing, or the
        number of one in the report's table of texts. A table without the column of the condition
        ``wanted`` has no such rows.
        """
        there = self._columns_of(table)
        if not there or (wanted and wanted.split()[0] not in there):
            return
        known = [name for name in columns if name in there]
        number = f"char({ord(_NUMBERED)}) || textId" if "textId" in there else "NULL"
        begin, most, exact = -(2**63), _ROWS, False
        while begin < 2**63:
            least = f'SELECT min(_rowid_) FROM "{table}" WHERE _rowid_ >= ?'
            (first,) = self.database.execute(least, (begin,)).fetchone()
            if first is None:
                return
            edges = (first, min(first + most, 2**63) - 1)
            # Most reports hold only integers there, so the types are not queried.
            form = 'ifnull("{0}", {2})'
            if exact:
                form = 'CASE typeof("{0}") WHEN \'{1}\' THEN "{0}" ELSE {2} END'
            parts = [f"group_concat({form.format(name, 'integer', NULL)})" for name in known]
            if text in there:
                told = form.format(text, "text", f"ifnull({number}, '')")
                told = f"replace({told}, char({ord(_SEPARATOR)}), ' ')" if exact else told
                parts.append(f"group_concat({told}, char({ord(_SEPARATOR)}))")
            query = f'SELECT {", ".join(["count(*)", *parts])} FROM "{table}" WHERE _rowid_ BETWEEN'
            try:
                found = self.database.execute(
                    f"{query} ? AND ?{wanted and ' AND '}{wanted}", edges
                ).fetchone()
            except sqlite3.DataError:
                if most == 1:
                    reason = f"holds a text of more than {_LONGEST_TEXT >> 20} MB in {table}"
                    raise TraceError(self.path, reason, _EXPORT) from None
                most = max(1, most // 16)
                continue
            count, *values = found
            texts = values.pop() if text in there else _SEPARATOR * (count - 1)
            parsed = [_numbers(value) for value in values]
            if count and not exact:
                whole = type(texts) is str and texts.count(_SEPARATOR) == count - 1
                if not whole or any(len(one) != count for one in parsed):
                    exact = True
                    continue
            self.progress.update(count)
            if count:
                given = dict(zip(known, parsed, strict=True))
                yield {n: given.get(n, nulls(count)) for n in columns}, texts, edges
            begin = edges[1] + 1

    def _version(self) -> str | None:
        """The version of the tool, from a table that has one of two names."""
        for table in filter(self._columns_of, ("META_DATA_EXPORT", "EXPORT_META_DATA")):
            query = f"SELECT name, value FROM \"{table}\" WHERE name LIKE 'EXPORT_%_VERSION'"
            found = dict(self.database.execute(query))
            if version := found.get("EXPORT_PRODUCT_VERSION") or found.get("EXPORT_SCHEMA_VERSION"):
                return str(version)
        return None


def _process(number: Integers) -> Integers:
    """The process of a globalPid or globalTid, in bits 24 to 47; 0 for null."""
    return np.where(number == NULL, 0, (number >> 24) & 0xFFFFFF)


def _few(numbers: Integers) -> list[int]:
    """The distinct values of numbers that are mostly equal; numpy would sort or hash all of them."""
    found = []
    while len(numbers):
        found.append(int(numbers[0]))
        numbers = numbers[numbers != found[-1]]
    return sorted(found)


def _numbers(text: str | None) -> Integers:
    """Integers separated by commas, up to the first value that is not an integer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # older numpy warns instead
            return np.fromstring(text or "", np.int64, sep=",")
    except ValueError:
        return np.empty(0, np.int64)


def _renumbered(values: Integers, names: Names, others: Names) -> Integers:
    present, place = distinct(values)
    return others.of(names.texts[number] for number in present.tolist())[place]


def _calls(trace: ProcessTrace, texts: Sequence[str], places: Integers) -> Integers:
    """Numbers the calls of operators, with the shapes in their texts."""
    found = ((texts[place], _SIZES.search(texts[place])) for place in places.tolist())
    return trace.calls([(t.partition(", ")[0], s[1] if s else "", "", "") for t, s in found])


def _sequences(texts: Sequence[str], places: Integers) -> Integers:
    found = (_SEQUENCE.search(texts[place]) for place in places.tolist())
    return np.array([int(one[1]) if one else -1 for one in found], np.int64)


@lru_cache(maxsize=1 << 14)
def _kind(head: str) -> int:
    """The possible kind of a range, from the beginning of its text."""
    if _COLLECTIVE.fullmatch(head):
        return _TALKS
    return _OPERATES if _OPERATOR.fullmatch(head) else _MARKS


def _thread(number: Integers) -> Integers:
    return number & 0xFFFFFF
