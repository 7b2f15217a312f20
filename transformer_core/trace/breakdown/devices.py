"""The breakdown of each device: the partition of its wall time, steps, phases, streams, kernels,
collectives and classes of operators.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schemas.results import profiles
from transformer_core.trace.breakdown.waits import (
    Waiting,
    critical_path,
    launch_use,
    step_bound,
    waiting,
)
from transformer_core.trace.events import event_table, operators, phases
from transformer_core.trace.events.clocks import EVERYTHING, Window
from transformer_core.trace.events.collectives import bus_factor
from transformer_core.trace.events.columns import NULL, Integers
from transformer_core.trace.events.event_table import Mask, Rows, ratio, total
from transformer_core.trace.events.intervals import Union, exposed, union_of

KERNELS_SHOWN, SHAPES_SHOWN = 10, 20


@dataclass(frozen=True)
class Choice:
    """The contents of a breakdown, and the window of time that it covers."""

    kernels: int = KERNELS_SHOWN  # number of kernel names listed, longest first
    pattern: str = ""  # only kernels whose names contain a match are listed
    shapes: int = SHAPES_SHOWN  # number of operator shapes listed, and of the program's functions
    window: Window = EVERYTHING

    def accepts(self, name: str) -> bool:
        return bool(re.search(self.pattern, name))


USUAL = Choice()


def activities(rows: Rows) -> list[profiles.Activity]:
    """Time by collective, operator class and kind of copy."""
    whole = int(rows.durations.sum())
    columns = {
        event_table.COMMUNICATION: "collective",
        event_table.COMPUTE: "operator_class",
        event_table.MEMCPY: "copy_kind",
    }
    found = []
    for kind in event_table.CLASSES:
        column = columns.get(kind, "name")
        mine = rows.where(rows.equal("class", kind))
        durations, groups = mine.durations, mine.groups(column)
        if (unnamed := mine.missing(column)).any():
            groups["unknown"] = np.flatnonzero(unnamed)
        for name, inside in groups.items():
            time = int(durations[inside].sum())
            found.append(
                profiles.Activity(
                    name=name,
                    kind=kind,
                    count=len(inside),
                    time_ns=time,
                    share=ratio(time, whole),
                    bytes=total(mine["bytes"][inside]),
                )
            )
    return sorted(found, key=lambda activity: -activity.time_ns)


def kernel_times(rows: Rows, choice: Choice) -> list[profiles.KernelTime]:
    """The kernels, or the operators of a CPU, with the longest total time."""
    rows = rows.where(rows.equal("class", event_table.COMPUTE, event_table.COMMUNICATION))
    durations = rows.durations
    whole = int(durations.sum())
    # Those of kernels launched before the recording are unknown.
    known = (rows["flops"] != NULL) | (rows["operator_bytes"] != NULL)
    times = {
        name: (int(durations[mine].sum()), mine)
        for name, mine in rows.groups("name").items()
        if choice.accepts(name)
    }
    longest = sorted(times.items(), key=lambda item: -item[1][0])[: choice.kernels]
    return [
        profiles.KernelTime(
            name=name,
            kind=rows.texts("class")[rows.codes("class")[mine[0]]],
            count=len(mine),
            time_ns=time,
            shortest_ns=int(durations[mine].min()),
            longest_ns=int(durations[mine].max()),
            share=ratio(time, whole),
            operators=list(operators.fused(name)),
            operator_class=rows.texts("operator_class")[rows.codes("operator_class")[mine[0]]],
            number_format=_format(rows, mine),
            flops=total(rows["flops"][counted]),
            bytes=total(rows["operator_bytes"][counted]),
            counted_ns=int(durations[counted].sum()),
        )
        for name, (time, mine) in longest
        for counted in [mine[known[mine]]]
    ]


def _format(rows: Rows, mine: NDArray[np.int64]) -> str | None:
    told = rows.texts("shapes")[np.unique(rows.codes("shapes")[mine])]
    found = {text.partition(" ")[0] for text in told if text}
    return found.pop() if len(found) == 1 and found <= operators.FORMATS else None


def graphs(rows: Rows, count: int) -> list[profiles.GraphUse]:
    """The CUDA graphs, longest first, with the ``count`` longest nodes of each."""
    node, graph = (np.where(rows[name] == 0, NULL, rows[name]) for name in ("node", "graph"))
    inside = np.flatnonzero((node != NULL) | (graph != NULL) | rows.equal("kind", "graph"))
    order = inside[np.lexsort((node[inside], graph[inside]))]
    mine, nodes, numbers = rows.where(order), node[order], graph[order]
    durations, found = mine.durations, []
    for number, begin, end in runs(numbers, 0, len(mine)):
        known = [run for run in runs(nodes, begin, end) if run[0] != NULL]
        times = [int(durations[first:last].sum()) for _, first, last in known]
        longest = sorted(zip(known, times, strict=True), key=lambda item: -item[1])[:count]
        found.append(
            profiles.GraphUse(
                graph=None if number == NULL else number,
                launches=len(np.unique(mine["correlation"][begin:end])),
                events=end - begin,
                time_ns=int(durations[begin:end].sum()),
                nodes=[
                    profiles.NodeUse(
                        node=one, name=mine["name"][first], count=last - first, time_ns=time
                    )
                    for (one, first, last), time in longest
                ],
            )
        )
    return sorted(found, key=lambda use: -use.time_ns)


def runs(values: Integers, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Value, begin and end of each run of equal values."""
    edges = (begin + 1 + np.flatnonzero(np.diff(values[begin:end]))).tolist()
    found = pairwise([begin, *edges, end]) if begin < end else ()
    return [(int(values[first]), first, last) for first, last in found]


_LINEAR = ("mm", "addmm", "linear", "mkldnn_linear", "_addmm_activation", "_scaled_mm")
_ATTENTION = ("bmm", "baddbmm", "scaled_dot_product", "attention")


def operator_classes(rows: Rows) -> list[profiles.OperatorClass]:
    """The operator classes on a device, in the order of :data:`operators.OPERATOR_CLASSES`."""
    durations = rows.durations
    total = int(durations[~rows.missing("operator_class")].sum())
    found = []
    for name in operators.OPERATOR_CLASSES:
        mine = rows.equal("operator_class", name)
        if not mine.any():
            continue
        time = int(durations[mine].sum())
        counted = mine & (rows["flops"] != NULL)
        # Without types there are FLOPs, but no bytes.
        both = counted & (rows["operator_bytes"] != NULL)
        counted = both if both.any() else counted
        flops = int(rows["flops"][counted].sum()) if counted.any() else None
        traffic = int(rows["operator_bytes"][both].sum()) if both.any() else None
        found.append(
            profiles.OperatorClass(
                operator_class=name,
                count=int(mine.sum()),
                time_ns=time,
                share=ratio(time, total),
                flops=flops,
                bytes=traffic,
                counted_ns=int(durations[counted].sum()),
                intensity=ratio(flops, traffic),
            )
        )
    return found


def forward_backward(rows: Rows) -> list[profiles.ForwardBackward]:
    known = [name for name in rows.texts("operator") if name is not None]
    contraction = rows.equal("operator_class", operators.CONTRACTION)
    groups = {
        group: contraction & rows.equal("operator", *(n for n in known if _contraction(n) == group))
        for group in ("linear", "attention")
    }
    for group in (operators.NORMALIZATION, operators.ELEMENT_WISE):
        groups[group] = rows.equal("operator_class", group)
    forward = rows.equal("phase", phases.FORWARD, phases.LOSS)
    backward = rows.equal("phase", phases.BACKWARD)
    found = []
    for group, mine in groups.items():
        times = [int(rows.durations[mine & phase].sum()) for phase in (forward, backward)]
        if any(times):
            found.append(
                profiles.ForwardBackward(
                    operators=group,
                    forward_ns=times[0],
                    backward_ns=times[1],
                    ratio=ratio(times[1] or None, times[0]),
                    flops_ratio=_ratio(rows["flops"], mine & forward, mine & backward),
                    bytes_ratio=_ratio(rows["operator_bytes"], mine & forward, mine & backward),
                )
            )
    return found


def _contraction(operator: str) -> str | None:
    """``linear`` for products with weights, ``attention`` for those of attention; otherwise null."""
    base = operator.rpartition("::")[2]
    if any(part in base for part in _ATTENTION):
        return "attention"
    return "linear" if base in _LINEAR else None


def _ratio(values: NDArray, forward: Mask, backward: Mask) -> float | None:
    """The sum of known values in backward over that in forward."""
    first, second = (int(values[some & (values != NULL)].sum()) for some in (forward, backward))
    return ratio(second or None, first)


OTHER = "other"  # the phase of events outside all ranges


def break_down_all(
    everything: Rows, choice: Choice = USUAL
) -> tuple[list[profiles.DeviceBreakdown], Waiting]:
    """The devices, and the comparison of their collectives."""
    work = everything.work
    ranges, waits = (everything.where(everything.equal("kind", kind)) for kind in ("range", "wait"))
    found: list[tuple[Rows, Rows, Rows]] = []
    for rank, of_rank in work.parts("rank"):
        marks, waited = (rows.where(rows["rank"] == rank) for rows in (ranges, waits))
        found += [(mine, marks, waited) for _, mine in of_rank.parts("device")]
    matched = waiting([mine for mine, _, _ in found])
    # One device at a time, which is then freed: its columns are large.
    devices = [_device(*found.pop(0), transfers, choice) for transfers in matched.transfers]
    return devices, matched


def _device(
    rows: Rows, ranges: Rows, waits: Rows, transfers: dict[str, int], choice: Choice
) -> profiles.DeviceBreakdown:
    start, end = int(rows["t0_ns"].min()), int(rows["t1_ns"].max())
    layers = [rows.union(rows.equal("class", *names)) for names in _EXPOSED]
    cpu = str(rows["device"][0]) == "cpu"
    counted, marks = (some.where(some.counted) for some in (rows, ranges))
    marked = bool(np.any(~marks.equal("name", phases.STEP)))
    span = partition(layers, start, end, cpu)
    steps = step_windows(rows, ranges)
    windows = list(steps.values())
    parts = [partition(layers, *window, cpu) for window in windows]
    return profiles.DeviceBreakdown(
        rank=int(rows["rank"][0]),
        pid=int(rows["pid"][0]),
        device=str(rows["device"][0]),
        events=len(rows),
        kernels=int(counted.equal("kind", "kernel", "operator").sum()),
        span=span,
        steps=[
            profiles.ProfiledStep(step=number, start_ns=begin - start, partition=part)
            for (number, (begin, _)), part in zip(steps.items(), parts, strict=True)
        ],
        streams=[
            profiles.StreamUse(
                stream=stream,
                events=len(mine),
                busy_ns=(busy := mine.union().length),
                occupancy=ratio(busy, end - start),
            )
            for stream, mine in rows.parts("stream")
        ],
        activities=activities(counted),
        kernel_times=kernel_times(counted, choice),
        collectives=_collectives(counted, transfers),
        phases=_phases(counted, marks, cpu) if marked else [],
        operators=operator_classes(counted),
        forward_backward=forward_backward(counted) if marked else [],
        bound=step_bound(rows, ranges, windows or [(start, end)], parts or [span], cpu),
        launches=None if cpu else launch_use(rows),
        graphs=graphs(counted, choice.kernels),
        critical_path=critical_path(rows, ranges, waits, *median_step(windows)) if windows else [],
    )


def median_step(windows: list[tuple[int, int]]) -> tuple[int, int]:
    """The step of median length."""
    return sorted(windows, key=lambda step: step[1] - step[0])[len(windows) // 2]


_EXPOSED = (
    (event_table.COMPUTE,),
    (event_table.COMMUNICATION,),
    (event_table.MEMCPY, event_table.MEMSET),
    (event_table.GRAPH,),
)
"""Classes in the order in which the partition exposes them."""


def partition(layers: list[Union], start: int, end: int, cpu: bool = False) -> profiles.Partition:
    """Partitions the time of a device from ``start`` to ``end``: compute U(K), exposed communication
    U(K + C) - U(K), exposed copies U(K + C + M) - U(K + C), exposed graphs likewise, and idle."""
    inside = [layer.clip(start, end) for layer in layers]
    parts = exposed(inside)
    idle = union_of(inside).gaps(start, end).length
    compute, communication, copies, graphs = parts
    assert sum(parts) + idle == end - start, "the partition does not sum to the window"
    return profiles.Partition(
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


def step_windows(rows: Rows, ranges: Rows) -> dict[int, tuple[int, int]]:
    """Begin and end of each step, by its number: from the begin of its range on the host to the end
    of the last event that it launched, but at most to the begin of the next step.

    A last step that launches nothing is none: torch.profiler begins one after each step of the
    program, even if the program then ends.
    """
    marks = ranges.where(ranges.equal("name", phases.STEP))
    marks = marks.where(np.argsort(marks["t0_ns"], kind="stable"))
    # In a window of the trace, the first of these may be any step.
    some = np.isin(rows["step"], marks["step"])
    if some.any() and not (rows["step"] == marks["step"][-1]).any():
        marks = marks.where(np.arange(len(marks) - 1))
    numbers, begins, latest = marks["step"], marks["t0_ns"], marks["t1_ns"].copy()
    place = np.searchsorted(numbers, rows["step"])
    np.maximum.at(latest, place[some], rows["t1_ns"][some])
    latest[:-1] = np.minimum(latest[:-1], begins[1:])
    windows = zip(begins.tolist(), latest.tolist(), strict=True)
    return dict(zip(numbers.tolist(), windows, strict=True))


def _collectives(rows: Rows, transfers: dict[str, int]) -> list[profiles.CollectiveUse]:
    found = []
    for name, mine in rows.groups("collective").items():
        time = int(rows.durations[mine].sum())
        transfer = transfers.get(name)
        found.append(
            profiles.CollectiveUse(
                collective=name,
                count=len(mine),
                bytes=total(rows["bytes"][mine]),
                time_ns=time,
                union_ns=rows.union(mine).length,
                transfer_ns=transfer,
                waiting_ns=None if transfer is None else time - transfer,
                bus_bandwidth=_bus_bandwidth(rows.where(mine), name, transfer),
            )
        )
    return found


def _bus_bandwidth(rows: Rows, collective: str, transfer_ns: int | None) -> float | None:
    size, ranks = rows["bytes"], rows["group_size"]
    if not transfer_ns or (size == NULL).any() or (ranks == NULL).any():
        return None
    moved = 0.0
    for count in np.unique(ranks).tolist():
        factor = bus_factor(collective, count)
        if factor is None:
            return None
        moved += int(size[ranks == count].sum()) * factor
    return moved / (transfer_ns * 1e-9)


def _phases(rows: Rows, ranges: Rows, cpu: bool) -> list[profiles.PhaseUse]:
    t0, t1, owners = phases.stretches(ranges)
    computes, talks = (
        rows.equal("class", kind) for kind in (event_table.COMPUTE, event_table.COMMUNICATION)
    )
    copies = rows.equal("class", event_table.MEMCPY, event_table.MEMSET)
    found = []
    for phase in (*phases.PHASES, phases.LOADER, OTHER):
        mine = rows.missing("phase") if phase == OTHER else rows.equal("phase", phase)
        held = owners == phase
        if not mine.any() and not held.any():
            continue
        on_host = int((t1[held] - t0[held]).sum())
        found.append(
            profiles.PhaseUse(
                phase=phase,
                host_ns=None if phase in (phases.LOADER, OTHER) else on_host,
                busy_ns=rows.union(mine).length,
                compute_ns=rows.union(mine & computes).length,
                communication_ns=rows.union(mine & talks).length,
                copies_ns=None if cpu else rows.union(mine & copies).length,
            )
        )
    return found
