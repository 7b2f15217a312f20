"""Joins within a process: an event and its launch, a launch and what runs around it."""

import numpy as np
from numpy.typing import NDArray

from transformer_core.profiling.events.time_intervals import innermost
from transformer_core.profiling.readers.columns import NULL, Columns, Integers, nulls

_STRETCH = 1 << 16
"""Times that are looked up at once."""


def first_launches(wanted: Integers, launches: Columns) -> tuple[Integers, Integers]:
    """Thread and time of the launch of each device event, by correlation id; null where there is
    none."""
    # The first of several calls with one id: a call of the driver lies in the runtime's.
    order = np.lexsort((launches["t0"], launches["correlation"]))
    known = launches["correlation"][order]
    thread, time = nulls(len(wanted)), nulls(len(wanted))
    if len(known):
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        found = (known[place] == wanted) & (wanted != NULL)
        first = order[place[found]]
        thread[found] = launches["thread"][first]
        time[found] = launches["t0"][first]
    return thread, time


def around(rows: Columns, thread: Integers, time: Integers) -> Integers:
    """The innermost of ``rows`` around each time on its thread; -1 where there is none."""
    found = np.full(len(time), -1, np.int64)
    if not len(rows):
        return found
    t0, t1, threads = (rows[name] for name in ("t0", "t1", "thread"))
    for number in np.unique(thread[thread != NULL]).tolist():
        mine = np.flatnonzero(threads == number)
        if not len(mine):
            continue
        asked = np.flatnonzero(thread == number)
        asked = asked[np.argsort(time[asked], kind="stable")]
        # Stretch by stretch, so that the memory for it does not grow with the trace.
        for begin in range(0, len(asked), _STRETCH):
            some = asked[begin : begin + _STRETCH]
            first, last = time[some[0]], time[some[-1]]
            near = mine[(t0[mine] <= last) & (t1[mine] > first)]
            owner = innermost(t0[near], t1[near]).at(time[some])
            found[some[owner >= 0]] = near[owner[owner >= 0]]
    return found


def leaves(operators: Columns, kinds: Integers, wanted: list[int]) -> NDArray[np.bool_]:
    """The operators of ``wanted`` kinds that do their work themselves: no operator of their kind
    runs inside."""
    mine = np.flatnonzero(np.isin(kinds, wanted))
    t0, t1, thread = (operators[name][mine] for name in ("t0", "t1", "thread"))
    kinds = kinds[mine]
    order = np.lexsort((-t1, t0, kinds, thread))
    found = np.zeros(len(operators), np.bool_)
    found[mine] = True
    if len(order) > 1:
        this, following = order[:-1], order[1:]
        # What is inside begins next of its kind on the thread.
        inside = t0[following] < t1[this]
        inside &= kinds[following] == kinds[this]
        inside &= thread[following] == thread[this]
        found[mine[this]] = ~inside
    return found
