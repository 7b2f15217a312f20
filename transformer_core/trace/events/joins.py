"""Joins within a process: an event and its launch, a launch and what runs around it; and columns that
hold numbers of texts.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.columns import (
    NULL,
    Columns,
    Integers,
    Names,
    distinct,
    nulls,
    places_by_value,
)
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
    """The innermost of ``rows`` around each time on its thread; -1 without one."""
    found = np.full(len(time), -1, np.int64)
    t0, t1, own = (rows[name] for name in ("t0", "t1", "thread"))
    of_rows, of_times = places_by_value(own), places_by_value(thread)
    for number in (of_rows.keys() & of_times.keys()) - {NULL}:
        mine, asked = of_rows[number], of_times[number]
        owner = Innermost(t0[mine], t1[mine]).at(time[asked])
        found[asked] = np.where(owner >= 0, mine[owner], -1)
    return found


def leaves(
    operators: Columns, chosen: Integers, kinds: Mapping[int, int], wanted: Collection[int]
) -> NDArray[np.bool_]:
    """Which of ``chosen`` operators are of ``wanted`` kinds and do their work themselves: no other
    operator of their kind runs inside. ``kinds`` maps names to kinds."""
    present, place = distinct(operators["name"])
    kind = np.array([kinds[number] for number in present.tolist()], np.int64)[place]
    some = np.flatnonzero(np.isin(kind, list(wanted)))
    columns = [kind[some], *(operators[name][some] for name in ("thread", "t0", "t1"))]
    order = np.lexsort((-columns[3], *columns[2::-1]))
    kind, thread, t0, t1 = (column[order] for column in columns)
    # Sorted by begin, longer ones first: if any operator begins inside another, the next one does.
    outer = (kind[1:] == kind[:-1]) & (thread[1:] == thread[:-1]) & (t0[1:] < t1[:-1])
    found = np.zeros(len(operators), np.bool_)
    found[some[order]] = np.append(~outer, [True] * (len(order) > 0))
    return found[chosen]


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
