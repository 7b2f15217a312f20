"""From the event table to the breakdown of every device: what it did, and with what."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.results import (
    Activity,
    CollectiveUse,
    DeviceBreakdown,
    KernelTime,
    Partition,
    PhaseUse,
    ProfiledStep,
    StreamUse,
)
from transformer_core.profiling import events, phases
from transformer_core.profiling.collectives import bus_factor
from transformer_core.profiling.columns import NULL, Integers
from transformer_core.profiling.intervals import Union, exposed, innermost, union
from transformer_core.profiling.operator_use import forward_backward, operator_classes

KERNELS_SHOWN = 10
"""Kernels that a breakdown lists by name."""

OTHER = "other"
"""The phase of what no range owns."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Columns of the event table as arrays; integers that are null hold NULL, texts None."""

    columns: dict[str, NDArray]

    def __getitem__(self, name: str) -> NDArray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["t0_ns"])

    def where(self, mask: Mask) -> "Rows":
        """Some of the rows."""
        return Rows({name: column[mask] for name, column in self.columns.items()})

    def union(self, mask: Mask | slice = slice(None)) -> Union:
        """When any of the rows runs."""
        return union(self["t0_ns"][mask], self["t1_ns"][mask])

    @property
    def durations(self) -> Integers:
        """Nanoseconds of each row."""
        return self["t1_ns"] - self["t0_ns"]


def rows_of(table: pa.Table) -> Rows:
    """A table of :data:`events.SCHEMA` as arrays."""
    columns: dict[str, NDArray] = {}
    for field in events.SCHEMA:
        column = table.column(field.name)
        if pa.types.is_dictionary(field.type):
            column = column.unify_dictionaries().combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # a table without rows
                column = pa.array([], field.type)
            texts = np.array([*column.dictionary.to_pylist(), None], dtype=object)
            places = column.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
            columns[field.name] = texts[places]
        else:
            columns[field.name] = pc.fill_null(column.cast(pa.int64()), NULL).to_numpy()
    return Rows(columns)


def break_down(table: pa.Table) -> list[DeviceBreakdown]:
    """The breakdown of every device of every rank in the event table."""
    everything = rows_of(table)
    ranges = everything.where(everything["kind"] == "range")
    work = everything.where(everything["kind"] != "range")
    found = []
    for rank, device in _devices(work):
        mine = work.where((work["rank"] == rank) & (work["device"] == device))
        found.append((mine, ranges.where(ranges["rank"] == rank)))
    transfers = _transfers([mine for mine, _ in found])
    return [_device(mine, marks, own) for (mine, marks), own in zip(found, transfers, strict=True)]


def _devices(rows: Rows) -> Iterator[tuple[int, str]]:
    for rank in np.unique(rows["rank"]).tolist():
        for device in sorted(set(rows["device"][rows["rank"] == rank])):
            yield rank, device


def _device(rows: Rows, ranges: Rows, transfers: dict[str, int]) -> DeviceBreakdown:
    start, end = int(rows["t0_ns"].min()), int(rows["t1_ns"].max())
    layers = _layers(rows)
    cpu = str(rows["device"][0]) == "cpu"
    marked = bool(np.any(ranges["name"] != phases.STEP))
    return DeviceBreakdown(
        rank=int(rows["rank"][0]),
        pid=int(rows["pid"][0]),
        device=str(rows["device"][0]),
        events=len(rows),
        kernels=int(np.isin(rows["kind"], ["kernel", "operator"]).sum()),
        span=partition(layers, start, end, cpu),
        steps=[
            ProfiledStep(
                step=number, start_ns=begin - start, partition=partition(layers, begin, finish, cpu)
            )
            for number, begin, finish in step_windows(rows, ranges)
        ],
        host_bound_ns=None if cpu else _host_bound(rows, start, end),
        streams=_streams(rows, end - start),
        activities=_activities(rows),
        kernel_times=_kernel_times(rows),
        collectives=_collectives(rows, transfers),
        phases=_phases(rows, ranges, cpu) if marked else [],
        operators=operator_classes(rows.columns),
        forward_backward=forward_backward(rows.columns) if marked else [],
    )


def _layers(rows: Rows) -> list[Union]:
    """When each class runs, in the order in which the partition exposes them."""
    copies = (rows["class"] == events.MEMCPY) | (rows["class"] == events.MEMSET)
    return [
        rows.union(rows["class"] == events.COMPUTE),
        rows.union(rows["class"] == events.COMMUNICATION),
        rows.union(copies),
        rows.union(rows["class"] == events.GRAPH),
    ]


def partition(layers: list[Union], start: int, end: int, cpu: bool = False) -> Partition:
    """What a device did from ``start`` to ``end``: compute U(K), exposed communication
    U(K + C) - U(K), exposed copies U(K + C + M) - U(K + C), exposed graphs likewise, and idle."""
    inside = [layer.clip(start, end) for layer in layers]
    parts = exposed(inside)
    busy = union(
        np.concatenate([layer.t0 for layer in inside]),
        np.concatenate([layer.t1 for layer in inside]),
    )
    idle = busy.gaps(start, end).length
    compute, communication, copies, graphs = parts
    assert sum(parts) + idle == end - start, "the partition does not sum to the window"
    return Partition(
        window_ns=end - start,
        busy_ns=sum(parts),
        idle_ns=idle,
        compute_ns=compute,
        communication_ns=inside[1].length,
        overlap_ns=inside[1].length - communication,
        exposed_communication_ns=communication,
        exposed_copies_ns=None if cpu else copies,
        exposed_graphs_ns=None if cpu else graphs,
    )


def step_windows(rows: Rows, ranges: Rows) -> list[tuple[int, int, int]]:
    """Number, begin and end of every step: its range on the host, until the last event that it
    launched has ended, but not into the next step."""
    chosen = ranges["name"] == phases.STEP
    order = np.argsort(ranges["t0_ns"][chosen], kind="stable")
    begins = ranges["t0_ns"][chosen][order].tolist()
    ends = ranges["t1_ns"][chosen][order].tolist()
    windows = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        launched = rows["t1_ns"][rows["step"] == number]
        end = max(end, int(launched.max()) if len(launched) else end)
        if number + 1 < len(begins):
            end = min(end, begins[number + 1])
        windows.append((number, begin, end))
    return windows


def _host_bound(rows: Rows, start: int, end: int) -> int | None:
    """Idle time in which the device had nothing to do because the host had launched nothing yet."""
    launched = rows["launch_ns"] != NULL
    if not launched.any():
        return None
    gaps = rows.union().gaps(start, end)
    # The first event after a gap ends it: the device waited for its launch, then for the rest.
    known = rows.where(launched)
    order = np.lexsort((known["launch_ns"], known["t0_ns"]))
    begins, launches = known["t0_ns"][order], known["launch_ns"][order]
    place = np.searchsorted(begins, gaps.t1)
    some = (place < len(begins)) & (begins[np.minimum(place, len(begins) - 1)] == gaps.t1)
    waited = launches[place[some]] - gaps.t0[some]
    return int(np.clip(waited, 0, gaps.t1[some] - gaps.t0[some]).sum())


def _streams(rows: Rows, span: int) -> list[StreamUse]:
    found = []
    for stream in np.unique(rows["stream"]).tolist():
        mine = rows["stream"] == stream
        busy = rows.union(mine).length
        found.append(
            StreamUse(
                stream=stream,
                events=int(mine.sum()),
                busy_ns=busy,
                occupancy=busy / span if span else None,
            )
        )
    return found


def _activities(rows: Rows) -> list[Activity]:
    """Time by what a viewer would group: collectives, classes of operators, kinds of copies."""
    names = rows["name"]
    for kind, column in (
        (events.COMMUNICATION, "collective"),
        (events.COMPUTE, "operator_class"),
        (events.MEMCPY, "copy_kind"),
    ):
        names = np.where(rows["class"] == kind, rows[column], names)
    names = np.where(pd.isna(names), "unknown", names)
    total = int(rows.durations.sum())
    found = []
    for kind in events.CLASSES:
        of_kind = rows["class"] == kind
        for name in sorted(set(names[of_kind])):
            mine = of_kind & (names == name)
            time = int(rows.durations[mine].sum())
            found.append(
                Activity(
                    name=name,
                    kind=kind,
                    count=int(mine.sum()),
                    time_ns=time,
                    share=time / total if total else None,
                    bytes=_sum(rows["bytes"][mine]),
                )
            )
    return sorted(found, key=lambda activity: -activity.time_ns)


def _kernel_times(rows: Rows) -> list[KernelTime]:
    kernels = (rows["class"] == events.COMPUTE) | (rows["class"] == events.COMMUNICATION)
    frame = pd.DataFrame(
        {
            "name": pd.Categorical(rows["name"][kernels]),
            "kind": rows["class"][kernels],
            "time": rows.durations[kernels],
        }
    )
    total = int(frame["time"].sum())
    grouped = frame.groupby("name", observed=True).agg(
        kind=("kind", "first"),
        calls=("time", "size"),
        total=("time", "sum"),
        shortest=("time", "min"),
        longest=("time", "max"),
    )
    longest = grouped.sort_values("total", ascending=False, kind="stable").head(KERNELS_SHOWN)
    return [
        KernelTime(
            name=row["name"],
            kind=row["kind"],
            count=row["calls"],
            time_ns=row["total"],
            shortest_ns=row["shortest"],
            longest_ns=row["longest"],
            share=row["total"] / total if total else None,
        )
        for row in longest.reset_index().to_dict("records")
    ]


def _transfers(devices: list[Rows]) -> list[dict[str, int]]:
    """The time of the transfers alone, by collective: of every execution the shortest duration on
    any device. Empty where the executions of the devices cannot be matched one to one."""
    by_device = []
    for rows in devices:
        order = np.argsort(rows["t0_ns"], kind="stable")
        collective, durations = rows["collective"][order], rows.durations[order]
        names = {name for name in collective if name is not None}
        by_device.append({name: durations[collective == name] for name in names})
    shortest: dict[str, int] = {}
    for name in {name for found in by_device for name in found}:
        columns = [found.get(name) for found in by_device]
        counts = {len(column) if column is not None else 0 for column in columns}
        if len(columns) > 1 and len(counts) == 1:
            shortest[name] = int(np.min(np.stack([c for c in columns if c is not None]), 0).sum())
    return [{name: shortest[name] for name in found if name in shortest} for found in by_device]


def _collectives(rows: Rows, transfers: dict[str, int]) -> list[CollectiveUse]:
    found = []
    for name in sorted({name for name in rows["collective"] if name is not None}):
        mine = rows["collective"] == name
        time = int(rows.durations[mine].sum())
        transfer = transfers.get(name)
        found.append(
            CollectiveUse(
                collective=name,
                count=int(mine.sum()),
                bytes=_sum(rows["bytes"][mine]),
                time_ns=time,
                union_ns=rows.union(mine).length,
                transfer_ns=transfer,
                waiting_ns=None if transfer is None else time - transfer,
                bus_bandwidth=_bus_bandwidth(rows.where(mine), name, transfer),
            )
        )
    return found


def _bus_bandwidth(rows: Rows, collective: str, transfer_ns: int | None) -> float | None:
    total = 0.0
    for size, ranks in zip(rows["bytes"].tolist(), rows["group_size"].tolist(), strict=True):
        factor = None if ranks == NULL else bus_factor(collective, ranks)
        if size == NULL or factor is None:
            return None
        total += size * factor
    return total / (transfer_ns * 1e-9) if transfer_ns else None


def _phases(rows: Rows, ranges: Rows, cpu: bool) -> list[PhaseUse]:
    marks = ranges.where(ranges["name"] != phases.STEP)
    segments = innermost(marks["t0_ns"], marks["t1_ns"])
    owners = marks["name"][segments.owner]
    copies = (rows["class"] == events.MEMCPY) | (rows["class"] == events.MEMSET)
    owned = np.where(pd.isna(rows["phase"]), OTHER, rows["phase"])
    found = []
    for phase in (*phases.PHASES, OTHER):
        mine = owned == phase
        held = owners == phase
        if not mine.any() and not held.any():
            continue
        found.append(
            PhaseUse(
                phase=phase,
                host_ns=None
                if phase == OTHER
                else int((segments.t1[held] - segments.t0[held]).sum()),
                busy_ns=rows.union(mine).length,
                compute_ns=rows.union(mine & (rows["class"] == events.COMPUTE)).length,
                communication_ns=rows.union(mine & (rows["class"] == events.COMMUNICATION)).length,
                copies_ns=None if cpu else rows.union(mine & copies).length,
            )
        )
    return found


def _sum(values: Integers) -> int | None:
    """The sum, or null if any value is."""
    return None if not len(values) or (values == NULL).any() else int(values.sum())
