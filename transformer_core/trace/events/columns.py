"""Columns of integers for millions of events, and numbers for their texts."""

from array import array
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.intervals import Innermost

Integers = NDArray[np.int64]

NULL = -(2**63)  # stands for null in columns of integers
_BLOCK = 1 << 15  # rows of a block


def or_null(value: int | None) -> int:
    """``value`` as a column holds it; null if it does not fit."""
    return NULL if value is None or abs(value) > -(NULL + 1) else value


def nulls(count: int) -> Integers:
    return np.full(count, NULL, np.int64)


def distinct(values: Integers) -> tuple[Integers, NDArray[np.int64]]:
    """The distinct values in order, and the place of each row's value among them.

    Does the same as ``np.unique`` with its inverse, but does not sort small numbers such as those
    of names.
    """
    given = values != NULL
    known = values if given.all() else values[given]
    if not len(known) or known.min() < 0 or known.max() > len(known) + 1024:
        present, place = np.unique(values, return_inverse=True)
        return present, place
    present = np.flatnonzero(np.bincount(known))
    table = np.empty(int(present[-1]) + 1, np.int64)
    if len(known) == len(values):
        table[present] = np.arange(len(present))
        return present, table[values]
    table[present] = np.arange(1, len(present) + 1)
    place = np.zeros(len(values), np.int64)
    place[given] = table[known]
    return np.append(NULL, present), place


def places_by_value(values: Integers) -> dict[int, NDArray[np.int64]]:
    """The places of each distinct value, in order of the values."""
    order = np.argsort(values, kind="stable")
    present, begins = np.unique(values[order], return_index=True)
    return dict(zip(present.tolist(), np.split(order, begins[1:]), strict=False))


class Names(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self.texts)
        self.texts.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Integers:
        return np.fromiter(map(self.__getitem__, texts), np.int64)


class _Block(NamedTuple):
    """Consecutive values of a column."""

    rows: int
    values: NDArray[np.integer]  # a single one if all are equal


def _block(values: Integers) -> _Block:
    least, most = values.min(), values.max()
    if least == most:
        return _Block(len(values), values[:1].copy())
    limits = ((kind, np.iinfo(kind)) for kind in (np.int8, np.int16, np.int32, np.int64))
    kind = next(k for k, limit in limits if limit.min <= least and most <= limit.max)
    return _Block(len(values), values.astype(kind))


class Columns:
    """Rows of integers, stored by column: the last ones as they come, those before them in blocks of
    as few bytes per value as their range allows."""

    def __init__(self, *names: str) -> None:
        self._blocks: dict[str, list[_Block]] = {name: [] for name in names}
        self._last = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        for column, value in zip(self._last.values(), values, strict=True):
            column.append(value)
        self._fill_blocks()

    def extend(self, **values: Integers | int) -> None:
        """Adds rows. A single number fills its whole column; a column that is not named is null."""
        count = next(len(found) for found in values.values() if not isinstance(found, int))
        for name, column in self._last.items():
            found = values.pop(name, NULL)
            if isinstance(found, int):
                found = np.full(count, found, np.int64)
            assert len(found) == count, name
            column.frombytes(np.ascontiguousarray(found, np.int64).view(np.uint8).data)
        assert not values, f"no such columns: {', '.join(values)}"
        self._fill_blocks()

    def _fill_blocks(self) -> None:
        if len(next(iter(self._last.values()))) >= _BLOCK:
            for name, column in self._last.items():
                self._append(name, np.frombuffer(column, np.int64))

    def _append(self, name: str, values: Integers) -> None:
        begins = range(0, len(values), _BLOCK)
        self._blocks[name] += [_block(values[begin : begin + _BLOCK]) for begin in begins]
        self._last[name] = array("q")

    def replace(self, name: str, values: Integers) -> None:
        """Replaces the values of a column by as many others."""
        self._blocks[name] = []
        self._append(name, values)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        for name in self._blocks:
            self.replace(name, self[name][mask])

    def __contains__(self, name: str) -> bool:
        return name in self._blocks

    def __len__(self) -> int:
        return self._count(next(iter(self._blocks)))

    def _count(self, name: str) -> int:
        return sum(block.rows for block in self._blocks[name]) + len(self._last[name])

    def __getitem__(self, name: str) -> Integers:
        return self.stretch(name, 0, self._count(name))

    def stretch(self, name: str, begin: int, end: int) -> Integers:
        """The values of a column from row ``begin`` up to ``end``, as a new array."""
        found, at = np.empty(end - begin, np.int64), 0
        last = np.array(self._last[name], np.int64)
        for count, values in [*self._blocks[name], _Block(len(last), last)]:
            first, stop = max(begin, at), min(end, at + count)
            if first < stop:
                part = values if len(values) == 1 else values[first - at : stop - at]
                found[first - begin : stop - begin] = part
            at += count
        return found


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


def leaves(operators: Columns, kind: Integers, wanted: Collection[int]) -> NDArray[np.bool_]:
    """Which operators are of ``wanted`` kinds and do their work themselves: no other operator of
    their kind runs inside. ``kind`` holds the kind of each operator."""
    some = np.flatnonzero(np.isin(kind, list(wanted)))
    columns = [kind[some], *(operators[name][some] for name in ("thread", "t0", "t1"))]
    order = np.lexsort((-columns[3], *columns[2::-1]))
    kind, thread, t0, t1 = (column[order] for column in columns)
    # Sorted by begin, longer ones first: if any operator begins inside another, the next one does.
    outer = (kind[1:] == kind[:-1]) & (thread[1:] == thread[:-1]) & (t0[1:] < t1[:-1])
    found = np.zeros(len(operators), np.bool_)
    found[some[order]] = np.append(~outer, [True] * (len(order) > 0))
    return found


def taken(values: Integers, places: Integers) -> Integers:
    """``values`` at ``places``; null at -1."""
    found = nulls(len(places))
    some = places >= 0
    found[some] = values[places[some]]
    return found


def mapped(names: Names, values: Integers, name: Callable[[str], str | None]) -> Integers:
    """The number of the text that ``name`` makes of each text; null stays null."""
    present, place = distinct(values)
    answers = [None if n == NULL else name(names.texts[n]) for n in present.tolist()]
    found = [NULL if answer is None else names[answer] for answer in answers]
    return np.array(found, np.int64)[place]


def chosen(names: Names, values: Integers, accept: Callable[[str], object]) -> NDArray[np.bool_]:
    """Where ``accept`` accepts the text."""
    yes = mapped(names, values, lambda text: "" if accept(text) else None)
    return yes != NULL
