"""Waits of a device in its steps, waits between ranks, and the critical path of a step.

Collectives are matched in order within process groups: the k-th of a kind in a group is the same on
all its ranks. Its shortest duration on any rank is the transfer, because the last rank to arrive does
not wait; the rest is waiting for that rank. This does not require synchronized clocks.

The critical path is the chain of work and waiting that determines the length of a step, followed
backwards from its end. An event on a device begins after the previous one has ended or, if it is
launched later, after its launch. Before the launch, the host was busy since its last wait for the
device; there, the path continues with the event that the host waited for. The parts follow each
other without gaps, so they sum to the step.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.results.profiles import LaunchUse, Partition, PathPart, StepBound, Straggler
from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.collectives import POINT_TO_POINT
from transformer_core.trace.events.columns import NULL, Integers
from transformer_core.trace.events.event_table import Mask, Rows
from transformer_core.trace.events.intervals import Union, union, union_of
from transformer_core.trace.events.process import UNKNOWN_GROUP, ranks_of


def step_bound(
    rows: Rows,
    ranges: Rows,
    windows: Sequence[tuple[int, int]],
    parts: Sequence[Partition],
    cpu: bool,
) -> StepBound:
    """The parts of the wall time of the steps, from their begins and ends and their partitions."""
    ends = [end for _, end in windows] + [int(rows["t1_ns"].max())]
    # Whole stretches: the event that ends one may belong to the next step, or come after the last.
    idle = rows.union().gaps(min(begin for begin, _ in windows), max(ends))
    late = idle if cpu else not_launched(rows, idle)
    fetching = _fetching(ranges)
    waited = fetched = host = 0
    for window in windows:
        inside, unlaunched = idle.clip(*window), late.clip(*window)
        waited += inside.length
        fetched += _common(inside, fetching)
        host += unlaunched.length - _common(unlaunched, fetching)
    return StepBound(
        window_ns=sum(part.window_ns for part in parts),
        device_ns=sum(part.compute_ns + (part.exposed_graphs_ns or 0) for part in parts),
        link_ns=sum(part.exposed_communication_ns for part in parts),
        copies_ns=sum(part.exposed_copies_ns or 0 for part in parts),
        input_ns=fetched,
        host_ns=host,
        other_ns=waited - fetched - host,
    )


def _fetching(ranges: Rows) -> Union:
    t0, t1, names = phases.stretches(ranges)
    mine = names == phases.DATA
    return union(t0[mine], t1[mine])


def not_launched(rows: Rows, gaps: Union) -> Union:
    """The part of each idle stretch before the launch of the event that ends it; all of the stretch
    after the last event, because the host launches nothing more."""
    known = rows.where(rows["launch_ns"] != NULL)
    order = np.lexsort((known["launch_ns"], known["t0_ns"]))
    begins, launches = known["t0_ns"][order], known["launch_ns"][order]
    until = gaps.t0.copy()
    place = np.searchsorted(begins, gaps.t1)
    some = np.append(begins, NULL)[place] == gaps.t1
    until[some] = np.clip(launches[place[some]], gaps.t0[some], gaps.t1[some])
    last = gaps.t0 >= rows["t1_ns"].max()
    until[last] = gaps.t1[last]
    return union(gaps.t0, until)


def _common(first: Union, second: Union) -> int:
    return first.length + second.length - union_of([first, second]).length


def launch_use(rows: Rows) -> LaunchUse | None:
    """Delays between launch and begin, and queue lengths; null if no launch is known.

    If one call launches several kernels, such as those of a CUDA graph, the first to begin counts.
    """
    known = rows.where(rows["launch_ns"] != NULL)
    if not len(known):
        return None
    order = np.lexsort((known["t0_ns"], known["launch_ns"], known["thread"]))
    calls = np.stack([known[name][order] for name in ("thread", "launch_ns")])
    first = np.append(True, (calls[:, 1:] != calls[:, :-1]).any(0))
    known = known.where(order[first])
    delays = np.maximum(known["t0_ns"] - known["launch_ns"], 0)
    launches, begins = np.sort(known["launch_ns"]), np.sort(known["t0_ns"])
    begun = np.searchsorted(begins, launches, side="right")
    queue = np.maximum(np.arange(1, len(launches) + 1) - begun, 0)
    return LaunchUse(
        launches=len(known),
        delay_median_ns=int(np.median(delays)),
        queue_median=float(np.median(queue)),
        queue_largest=int(queue.max()),
    )


@dataclass
class Waiting:
    """Transfers and waits, from a comparison of the collectives of all devices."""

    transfers: list[dict[str, int]]
    """Nanoseconds by device and kind of collective, without kinds of unknown transfer."""
    notes: list[str] = field(default_factory=list)
    stragglers: list[Straggler] = field(default_factory=list)


@dataclass(frozen=True)
class _Member:
    device: int
    rank: int
    t0: Integers
    t1: Integers
    counted: Mask
    sizes: frozenset[int]  # the group sizes that the events give


def waiting(devices: Sequence[Rows]) -> Waiting:
    """Matches the collectives of devices. If ranks are missing, or ran a collective a different
    number of times, its transfer is unknown, and a note says why."""
    sums: list[Counter[str]] = [Counter() for _ in devices]
    failed: list[set[str]] = [set() for _ in devices]
    last, caused, notes = Counter[int](), Counter[int](), set()
    for (name, group), found in _members(devices).items():
        if problem := _problem(name, group, found, len(devices)):
            notes.add(f"Transfer and waiting of {name} are unknown: {problem}")
            for member in found:
                failed[member.device].add(name)
            continue
        durations = np.stack([member.t1 - member.t0 for member in found])
        shortest, late = durations.min(0), durations.argmin(0)
        lost = (durations - shortest).sum(0)
        for place, member in enumerate(found):
            # All are matched: of an execution, ranks may begin one before and one after a step's end.
            sums[member.device][name] += int(shortest[member.counted].sum())
            if len(found) > 1:  # nobody waits for a rank that is alone in its group
                last[member.rank] += int((late == place).sum())
                caused[member.rank] += int(lost[late == place].sum())
    executions = sum(last.values())
    return Waiting(
        transfers=[
            {name: time for name, time in mine.items() if name not in lacking}
            for mine, lacking in zip(sums, failed, strict=True)
        ],
        notes=sorted(notes),
        stragglers=[
            Straggler(rank=rank, last=last[rank], share=last[rank] / executions, caused_ns=cost)
            for rank, cost in sorted(caused.items(), key=lambda item: -item[1])
            if executions
        ],
    )


def _members(devices: Sequence[Rows]) -> dict[tuple[str, str | None], list[_Member]]:
    """By kind of collective and group; the group is null if the trace does not list groups."""
    found: defaultdict[tuple[str, str | None], list[_Member]] = defaultdict(list)
    for number, rows in enumerate(devices):
        for name, group, places in rows.executions():
            sizes = rows["group_size"][places]
            member = _Member(
                device=number,
                rank=int(rows["rank"][0]),
                t0=rows["t0_ns"][places],
                t1=rows["t1_ns"][places],
                counted=rows.counted[places],
                sizes=frozenset(np.unique(sizes[sizes != NULL]).tolist()),
            )
            found[name, group].append(member)
    return found


def _problem(name: str, group: str | None, members: list[_Member], devices: int) -> str | None:
    """Why the executions of a group cannot be matched; null if they can."""
    if group == UNKNOWN_GROUP:
        return "the training has several process groups, and the trace does not say which ran it"
    present = {member.rank for member in members}
    ranks = None if group is None else ranks_of(group)
    sizes = frozenset().union(*(member.sizes for member in members))
    if ranks is not None:
        if absent := sorted(set(ranks) - present):
            listed = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
            return f"no trace of rank {listed} of its group holds it"
        if present - set(ranks):
            return f"rank {min(present - set(ranks))} is not in the group {group} that it names"
    elif len(sizes) > 1:
        return "it ran in groups of several sizes that the trace does not tell apart"
    elif sizes and max(sizes) != len(members):
        return f"its group has {max(sizes)} ranks, and the traces are of {len(members)}"
    elif group is None and len(members) < devices:
        return f"it ran on {len(members)} of the {devices} devices"
    if len(members) < 2 and (ranks is None or len(ranks) > 1):
        return "only one rank has a trace"
    counts = sorted({len(member.t0) for member in members})
    if len(counts) > 1:
        return f"the ranks ran it {counts[0]} to {counts[-1]} times"
    latest, first = np.max([m.t0 for m in members], 0), np.min([m.t1 for m in members], 0)
    if name in POINT_TO_POINT and (latest >= first).any():
        return "its executions pair ranks, in an order that differs between ranks"
    return None


HOST, INPUT, LATENCY = "host", "input", "latency"

_OUTSIDE = "outside the phases"


class _Path:
    """The parts of a path: their lengths by kind and name."""

    def __init__(self, ranges: Rows) -> None:
        self.t0, self.t1, self.phases = phases.stretches(ranges)
        self.times: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def add(self, kind: str, name: str, time: int) -> None:
        if time > 0:
            self.times[kind, name].append(time)

    def add_host(self, begin: int, end: int) -> None:
        """Adds what the host did from ``begin`` to ``end``, by phase."""
        first = int(np.searchsorted(self.t1, begin, side="right"))
        inside = slice(first, int(np.searchsorted(self.t0, end)))
        at = begin
        for t0, t1, phase in zip(
            self.t0[inside], self.t1[inside], self.phases[inside], strict=True
        ):
            start = max(at, int(t0))
            self.add(HOST, _OUTSIDE, start - at)
            at = min(end, int(t1))
            self.add(INPUT if phase == phases.DATA else HOST, str(phase), at - start)
        self.add(HOST, _OUTSIDE, end - at)


def critical_path(rows: Rows, ranges: Rows, waits: Rows, begin: int, end: int) -> list[PathPart]:
    """The parts of the path from ``begin`` to ``end``, longest first; they sum to ``end - begin``.

    On a CPU, host and device are the same: an event follows the one that ran before it.
    """
    cpu = bool(len(rows)) and str(rows["device"][0]) == "cpu"
    inside = rows.where((rows["t1_ns"] > begin) & (rows["t0_ns"] < end))
    inside = inside.where(np.argsort(inside["t1_ns"], kind="stable"))
    path, waited = _Path(ranges), waits.union()
    t0, t1, launches = (inside[name] for name in ("t0_ns", "t1_ns", "launch_ns"))
    t1 = np.minimum(t1, end)  # an event may run into the next step
    kinds, names = inside["class"], _names(inside)
    at, event = end, _last(t1, end)
    while at > begin:
        if event < 0:
            path.add_host(begin, at)
            break
        # After the last event of a step, the remaining time belongs to the host.
        path.add_host(max(begin, int(t1[event])), at)
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
            path.add_host(ended, at)
            at, event = ended, before
            continue
        launch = min(at, max(begin, launch))
        path.add(LATENCY, "", at - launch)
        # Without a wait in this step, or a recorded one, the rest of the step belongs to the host.
        place = int(np.searchsorted(waited.t0, launch)) - 1
        at = max(begin, min(int(waited.t1[place]), launch)) if place >= 0 else begin
        path.add_host(at, launch)
        event = _last(t1, at, before + 1)
    return [
        PathPart(kind=kind, name=name, count=len(times), time_ns=sum(times))
        for (kind, name), times in sorted(path.times.items(), key=lambda item: -sum(item[1]))
    ]


def _last(t1: np.ndarray, time: int, limit: int | None = None) -> int:
    """Of the first ``limit`` events, the last to end by ``time``, or -1."""
    place = int(np.searchsorted(t1, time, side="right"))
    return (place if limit is None else min(place, limit)) - 1


def _names(rows: Rows) -> np.ndarray:
    """The collective, else the operator, else the name of each event."""
    found = rows["name"].copy()
    for column in ("operator", "collective"):
        known = ~rows.missing(column)
        found[known] = rows[column][known]
    talks = rows.equal("class", event_table.COMMUNICATION)
    copies = ~rows.missing("copy_kind")
    found[copies & ~talks] = rows["copy_kind"][copies & ~talks]
    return found
