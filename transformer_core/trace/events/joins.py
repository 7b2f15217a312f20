"""Joins within a process: an event and its launch, a launch and what runs around it; and columns that
hold numbers of texts.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.columns import NULL, Columns, Integers, Names, distinct, nulls
from transformer_core.trace.events.intervals import Innermost


def first_launches(wanted: Integers, launches: Columns) -> tuple[Integers, Integers]:
    """Thread and time of the launch of each device event, by correlation id; null without one.

    Of several calls with one id the first counts: a call of the driver lies inside the runtime's.
    """
    if not len(launches):
        return nulls(len(wanted)), nulls(len(wanted))
    ids, t0 = launches["correlation"], launches["t0"]
    order = np.lexsort((t0, ids))
    known, first = np.unique(ids[order], return_index=True)
    place = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    launched = (wanted != NULL) & (known[place] == wanted)
    call = np.full(len(wanted), -1, np.int64)
    call[launched] = order[first[place[launched]]]
    return taken(launches["thread"], call), taken(t0, call)


def around(rows: Columns, thread: Integers, time: Integers) -> Integers:
    """The innermost of ``rows`` around each time on its thread; -1 where there is none.

    Rows are unpacked stretch by stretch, so that the memory for it grows with the times alone.
    """
    found = np.full(len(time), -1, np.int64)
    asked = np.flatnonzero(thread != NULL)
    asked = asked[np.argsort(time[asked], kind="stable")]
    times, threads = time[asked], thread[asked]
    begins, ends = nulls(len(asked)), np.full(len(asked), np.iinfo(np.int64).max)
    for edges in rows.stretches():
        t0, t1, own = (rows.stretch(name, *edges) for name in ("t0", "t1", "thread"))
        first, last = np.searchsorted(times, (t0.min(), t1.max()))
        for number in distinct(own)[0].tolist():
            some = first + np.flatnonzero(threads[first:last] == number)
            if not len(some):
                continue
            mine = np.flatnonzero(own == number)
            owner = Innermost(t0[mine], t1[mine]).at(times[some])
            some, inner = some[owner >= 0], mine[owner[owner >= 0]]
            # Of two, that which began last is the inner one, or else that which ends first.
            later = t0[inner] > begins[some]
            later |= (t0[inner] == begins[some]) & (t1[inner] <= ends[some])
            some, inner = some[later], inner[later]
            begins[some], ends[some] = t0[inner], t1[inner]
            found[asked[some]] = edges[0] + inner
    return found


def leaves(
    operators: Columns, chosen: Integers, kinds: Mapping[int, int], wanted: Collection[int]
) -> NDArray[np.bool_]:
    """Which of ``chosen`` operators are of ``wanted`` kinds and do their work themselves: no other
    of their kind runs inside. ``kinds`` has the kind of each name."""
    t0, t1, thread, name = (operators[n][chosen] for n in ("t0", "t1", "thread", "name"))
    kind = _kinds(name, kinds)
    found = np.isin(kind, list(wanted))
    for begin, finish in operators.stretches():
        other0, other1, on, named = (
            operators.stretch(n, begin, finish) for n in ("t0", "t1", "thread", "name")
        )
        near = np.flatnonzero(found & (t0 <= other0.max()) & (t1 > other0.min()))
        of_kind = _kinds(named, kinds)
        for pair in np.unique(np.stack([thread[near], kind[near]], 1), axis=0).tolist():
            asked = near[(thread[near] == pair[0]) & (kind[near] == pair[1])]
            mine = np.flatnonzero((on == pair[0]) & (of_kind == pair[1]))
            mine = mine[np.lexsort((-other1[mine], other0[mine]))]
            if not len(mine):
                continue
            begins = other0[mine]
            after = np.searchsorted(begins, t0[asked], side="right")
            inside = after < np.searchsorted(begins, t1[asked])
            # Of those that begin with it, the last is the shortest.
            last = after - 1
            same = (last >= 0) & (begins[last] == t0[asked]) & (t0[asked] < t1[asked])
            # It lies inside if it ends before, or stands later.
            end, of = other1[mine[last[same]]], t1[asked[same]]
            later = begin + mine[last[same]] > chosen[asked[same]]
            same[same] = (end < of) | ((end == of) & later)
            found[asked[inside | same]] = False
    return found


def _kinds(names: Integers, kinds: Mapping[int, int]) -> Integers:
    present, place = distinct(names)
    return np.array([kinds[number] for number in present.tolist()], np.int64)[place]


def taken(values: Integers, places: Integers) -> Integers:
    """``values`` at ``places``; null at -1."""
    found = nulls(len(places))
    some = places >= 0
    found[some] = values[places[some]]
    return found


def mapped(names: Names, values: Integers, name: Callable[[str], str | None]) -> Integers:
    """The number of the name that a function gives each text; null stays null."""
    some = values != NULL
    present = np.flatnonzero(np.bincount(values[some])) if some.any() else np.empty(0, np.int64)
    # This creates texts: only those that existed before are looked up.
    answers = [name(names.texts[number]) for number in present.tolist()]
    if not len(present):
        return nulls(len(values))
    table = nulls(int(present[-1]) + 1)
    table[present] = [NULL if answer is None else names[answer] for answer in answers]
    found = nulls(len(values))
    found[some] = table[values[some]]
    return found


def chosen(names: Names, values: Integers, accept: Callable[[str], object]) -> NDArray[np.bool_]:
    """Where a function accepts the text."""
    yes = mapped(names, values, lambda text: "" if accept(text) else None)
    return yes != NULL
