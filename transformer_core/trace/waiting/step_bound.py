"""What the steps of a device wait for, and how far the host runs ahead of it."""

from collections.abc import Sequence

import numpy as np

from schemas.results.profile_details import LaunchUse, StepBound
from schemas.results.profiles import Partition
from transformer_core.trace.events import phases
from transformer_core.trace.events.rows import Rows
from transformer_core.trace.events.time_intervals import Union, innermost, union, union_of
from transformer_core.trace.readers.columns import NULL, Integers

Window = tuple[int, int]


def step_bound(
    rows: Rows, ranges: Rows, windows: Sequence[tuple[Window, Partition]], cpu: bool
) -> StepBound:
    """The parts of the wall time of the steps; ``windows`` holds begin, end, partition of each."""
    idle = rows.union().gaps(
        min(begin for (begin, _), _ in windows), max(end for (_, end), _ in windows)
    )
    fetching = _fetching(ranges)
    launched = _launched(rows)
    parts = dict.fromkeys(("input", "host", "other"), 0)
    for (begin, end), _ in windows:
        inside = idle.clip(begin, end)
        late = inside if cpu else _not_launched(*launched, inside)
        fetched = _common(inside, fetching)
        parts["input"] += fetched
        host = late.length - _common(late, fetching)
        parts["host"] += host
        parts["other"] += inside.length - fetched - host
    whole = [partition for _, partition in windows]
    return StepBound(
        window_ns=sum(part.window_ns for part in whole),
        device_ns=sum(part.compute_ns + (part.exposed_graphs_ns or 0) for part in whole),
        link_ns=sum(part.exposed_communication_ns for part in whole),
        copies_ns=sum(part.exposed_copies_ns or 0 for part in whole),
        input_ns=parts["input"],
        host_ns=parts["host"],
        other_ns=parts["other"],
    )


def _fetching(ranges: Rows) -> Union:
    """When the host is in the phase that fetches batches."""
    marks = ranges.where(~ranges.equal("name", phases.STEP))
    cut = innermost(marks["t0_ns"], marks["t1_ns"])
    mine = marks.equal("name", phases.DATA)[cut.owner]
    return union(cut.t0[mine], cut.t1[mine])


def _launched(rows: Rows) -> tuple[Integers, Integers]:
    """Begins in order, and launches, of the events whose launch is known."""
    known = rows.where(rows["launch_ns"] != NULL)
    order = np.lexsort((known["launch_ns"], known["t0_ns"]))
    return known["t0_ns"][order], known["launch_ns"][order]


def _not_launched(begins: Integers, launches: Integers, gaps: Union) -> Union:
    """The parts of idle stretches until the event that ends each was launched."""
    if not len(begins):
        return Union(gaps.t0[:0], gaps.t0[:0])
    place = np.minimum(np.searchsorted(begins, gaps.t1), len(begins) - 1)
    some = begins[place] == gaps.t1
    until = np.clip(launches[place[some]], gaps.t0[some], gaps.t1[some])
    return union(gaps.t0[some], until)


def _common(first: Union, second: Union) -> int:
    """Nanoseconds that lie in both."""
    return first.length + second.length - union_of([first, second]).length


def launch_use(rows: Rows) -> LaunchUse | None:
    """From launch to begin; null where no launch is known.

    Of what one call launches, such as the kernels of a CUDA graph, the first to begin counts.
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
        delay_95_ns=int(np.percentile(delays, 95)),
        queue_median=float(np.median(queue)),
        queue_largest=int(queue.max()),
    )
