"""The event table as arrays, each made when it is asked for.

Few of the many columns are asked of most selections of rows, so that none of them is copied before.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events import event_table
from transformer_core.trace.events.event_table import Events
from transformer_core.trace.events.time_intervals import Union, union
from transformer_core.trace.readers.columns import NULL, Integers
from transformer_core.trace.readers.spilled import moved, picked

if TYPE_CHECKING:
    import pyarrow as pa

Mask = NDArray[np.bool_]
Value = TypeVar("Value")


class _Made(dict[str, Value]):
    """What a function makes of names, kept."""

    def __init__(self, make: Callable[[str], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Value:
        self[name] = made = self._make(name)
        return made


class _Anew(_Made[Value]):
    """Not kept: what asks for it keeps it, and often but a part."""

    def __missing__(self, name: str) -> Value:
        return self._make(name)


class _Few(_Made[Value]):
    """The last few of what was made: of columns each takes as much memory as the table packed."""

    _MOST = 6

    def __missing__(self, name: str) -> Value:
        if len(self) >= self._MOST:
            del self[next(iter(self))]
        return super().__missing__(name)


class Rows:
    """Columns of the event table; integers that are null hold NULL, texts None."""

    def __init__(
        self,
        columns: Mapping[str, NDArray],
        texts: Mapping[str, NDArray],
        places: NDArray[np.int64] | slice = slice(None),
    ) -> None:
        self._all, self._places = columns, places
        self.texts = texts
        """The values of columns of texts; the last is None."""
        self.columns: Mapping[str, NDArray] = _Few(lambda name: picked(columns[name], places))
        """Numbers, or of texts the places of their values."""

    def __getitem__(self, name: str) -> NDArray:
        column = self.columns[name]
        return self.texts[name][column] if name in event_table.TEXTS else column

    def __len__(self) -> int:
        return len(self.columns["t0_ns"])

    def where(self, mask: Mask | NDArray[np.int64]) -> "Rows":
        """Some of the rows."""
        if mask.dtype == np.bool_ and mask.all():
            return self  # and what was made of its columns
        chosen = np.flatnonzero(mask) if mask.dtype == np.bool_ else mask.astype(np.int64)
        before = self._places
        places = moved(chosen) if isinstance(before, slice) else picked(before, chosen)
        return Rows(self._all, self.texts, places)

    def equal(self, name: str, *texts: str) -> Mask:
        """Where a column of texts holds one of some."""
        known = self.texts[name]
        return np.isin(self.columns[name], [k for k, text in enumerate(known) if text in texts])

    def missing(self, name: str) -> Mask:
        """Where a column of texts is null."""
        return self.columns[name] == len(self.texts[name]) - 1

    def groups(self, name: str) -> dict[str, NDArray[np.int64]]:
        """The places of the rows by the values of a column of texts, in order of those; without
        null."""
        codes = self.columns[name]
        order = np.argsort(codes, kind="stable")
        present, begins = np.unique(codes[order], return_index=True)
        parts = np.split(order, begins[1:])
        known = self.texts[name]
        found = {known[code]: part for code, part in zip(present, parts, strict=False)}
        return {text: found[text] for text in sorted(text for text in found if text is not None)}

    def union(self, mask: Mask | NDArray[np.int64] | slice = slice(None)) -> Union:
        """When any of the rows runs."""
        return union(self["t0_ns"][mask], self["t1_ns"][mask])

    def replaced(self, **columns: NDArray) -> "Rows":
        """The same rows with other values in some columns."""
        made = _Made(lambda name: self.columns[name])
        made.update(columns)
        return Rows(made, self.texts)

    @cached_property
    def work(self) -> "Rows":
        """Those of devices: what ran, not what the host marked."""
        return self.where(~self.equal("kind", *event_table.HOST_KINDS))

    @property
    def durations(self) -> Integers:
        """Nanoseconds of each row."""
        return self["t1_ns"] - self["t0_ns"]


def rows_of(table: "Events | pa.Table", but: str | None = None) -> Rows:
    """The event table as arrays; without the rows of one kind, ``but``."""
    if not isinstance(table, Events):
        from transformer_core.trace.events.arrow_arrays import events_of

        table = events_of(table)
    kept = slice(None) if but is None else moved(np.flatnonzero(~table.of_kind(but)))
    return _rows(table, kept)


def _rows(events: Events, kept: NDArray[np.int64] | slice) -> Rows:
    def known(name: str) -> tuple[NDArray, NDArray[np.int32]]:
        """The texts of a column and None, and the place there of each text of the table; what
        stands behind the last of these is the place of null."""
        values = events.columns[name]
        present = np.flatnonzero(np.bincount(values[values != NULL]))
        order: dict[str, int] = {}
        places = [order.setdefault(events.texts[k], len(order)) for k in present.tolist()]
        table = np.full(len(events.texts) + 1, len(order), np.int32)
        table[present] = places
        return np.array([*order, None], dtype=object), table

    tables = _Made(known)

    def column(name: str) -> NDArray:
        values = picked(events.columns[name], kept)
        if name not in event_table.TEXTS:
            return values
        table = tables[name][1]
        # What is null stands behind the last text, wherever that is.
        values[values == NULL] = len(table) - 1
        return picked(table, values)

    return Rows(_Anew(column), _Made(lambda name: tables[name][0]))


def total(values: Integers) -> int | None:
    """The sum, or null if any value is, or there is none."""
    return None if not len(values) or (values == NULL).any() else int(values.sum())
