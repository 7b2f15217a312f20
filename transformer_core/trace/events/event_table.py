"""The event table, which every reader makes and the breakdown reads: one row per event.

Rows are device events (kernels, copies, CUDA graphs) or, on a CPU, the self time of operators and the
collectives of gloo; and the marks of the host: steps, phases, modules, waits, memory. Times are
nanoseconds on the clock of the trace; ranks may have different clocks. In memory the table
consists of numpy arrays: importing Arrow takes as much memory as the events of a 300 MB trace, so only
code that reads or writes Parquet imports it. :class:`Rows` unpacks columns on demand;
:class:`Window` cuts a stretch of time out of a table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_core.trace.events.columns import NULL, Columns, Integers, nulls, places_by_value
from transformer_core.trace.events.intervals import Union, union

HOST_KINDS = ("range", "module", "wait", "memory")
"""Kinds of rows besides kernel, memcpy, memset, graph and operator (work of a CPU): a step or phase;
a call of a module, with the bytes that it leaves allocated; a call in which the host waits for a
device; the bytes allocated on a device."""

CLASSES = ("compute", "communication", "memcpy", "memset", "graph")
COMPUTE, COMMUNICATION, MEMCPY, MEMSET, GRAPH = CLASSES
"""Classes of device time. A row of :data:`HOST_KINDS` has none."""

COLUMNS = {
    "rank": "int32",
    "pid": "int64",
    "device": "text",  # cuda:<index>, xpu:<index>, ... or cpu; null for ranges
    "context": "int64",
    "stream": "int64",  # on a CPU: the thread
    "t0_ns": "int64",
    "t1_ns": "int64",
    "kind": "text",
    "name": "text",
    "class": "text",
    "collective": "text",  # all_reduce, broadcast, ...; null unless communication
    "copy_kind": "text",  # h2d, d2h, d2d, p2p, ...; null unless memcpy
    "bytes": "int64",  # copied, set, communicated or allocated; null if unknown
    "group_size": "int32",  # ranks of a collective; null if unknown
    "group": "text",  # these ranks, "0,1", or "#" and a name if they are unknown
    "correlation": "int64",  # of the launch, within its process
    "graph": "int64",  # CUDA graph that contains the event
    "node": "int64",  # its node in that graph
    "thread": "int64",  # thread that launched it
    "launch_ns": "int64",  # start of the launch
    "operator": "text",  # innermost operator that launched it
    "shapes": "text",  # of the inputs of the operator
    "operator_class": "text",
    "layer": "text",  # path of the module
    "source": "text",  # function of the program that launched it, with file and line
    "phase": "text",
    "step": "int32",  # number of the step that launched it, from 0
    "flops": "int64",  # of an operator, on its longest row
    "operator_bytes": "int64",  # read and written by an operator, on its longest row
}
"""The columns of events.parquet in order, and their types."""

TEXTS = frozenset(name for name, kind in COLUMNS.items() if kind == "text")


@dataclass
class Events:
    columns: Columns = field(default_factory=lambda: Columns(*COLUMNS))
    """As in :data:`COLUMNS`; columns of texts hold places in ``texts``."""
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.columns)

    def where(self, mask: NDArray[np.bool_]) -> "Events":
        found = Events(texts=self.texts)
        found.columns.extend(**{name: self.columns[name][mask] for name in COLUMNS})
        return found


def joined(parts: Sequence[Events]) -> Events:
    if len(parts) == 1:
        return parts[0]
    found = Events()
    begins = []
    for part in parts:
        # Parts of one process share their texts.
        same = part.texts is parts[0].texts
        begins.append(0 if same else len(found.texts))
        found.texts += [] if same and len(begins) > 1 else part.texts
    for name in COLUMNS:
        columns = [part.columns[name] for part in parts]
        if name in TEXTS:
            columns = [
                np.where(values == NULL, NULL, values + begin)
                for values, begin in zip(columns, begins, strict=True)
            ]
        found.columns.replace(name, np.concatenate(columns) if columns else nulls(0))
    return found


Mask = NDArray[np.bool_]
Places = NDArray[np.int64] | slice


_FEW = 6  # columns kept unpacked: each takes as much memory as the whole table packed


class Rows:
    """Columns of the event table; integers that are null hold NULL, texts None."""

    def __init__(
        self,
        columns: Callable[[str, Places], NDArray],
        texts: Callable[[str], NDArray],
        places: Places = slice(None),
    ) -> None:
        self._all, self._places = columns, places
        self.texts = texts
        """The values of a column of texts; the last is None."""
        self.codes = lru_cache(_FEW)(lambda name: columns(name, places))
        """Of a column of texts, the places of its values in ``texts``; otherwise its integers."""

    def __getitem__(self, name: str) -> NDArray:
        codes = self.codes(name)
        return self.texts(name)[codes] if name in TEXTS else codes

    def __len__(self) -> int:
        return len(self.codes("t0_ns"))

    def where(self, mask: Mask | NDArray[np.int64]) -> "Rows":
        if mask.dtype == np.bool_ and mask.all():
            return self  # and what was made of its columns
        chosen = np.flatnonzero(mask) if mask.dtype == np.bool_ else mask.astype(np.int64)
        before = self._places
        places = chosen if isinstance(before, slice) else before[chosen]
        return Rows(self._all, self.texts, places)

    def equal(self, name: str, *texts: str) -> Mask:
        known, wanted = self.texts(name), set(texts)
        return np.isin(self.codes(name), [k for k, text in enumerate(known) if text in wanted])

    def missing(self, name: str) -> Mask:
        return self.codes(name) == len(self.texts(name)) - 1

    def groups(self, name: str) -> dict[str, NDArray[np.int64]]:
        """The places of the rows by text, in order of the texts; null is left out."""
        known = self.texts(name)
        found = {known[code]: part for code, part in places_by_value(self.codes(name)).items()}
        return {text: found[text] for text in sorted(text for text in found if text is not None)}

    def parts(self, name: str) -> "Iterator[tuple[Any, Rows]]":
        """The rows of each value of a column, in order of the values; null texts are left out."""
        codes = self.codes(name)
        values = [(code, code) for code in np.unique(codes).tolist()]
        if name in TEXTS:
            known = self.texts(name)
            values = sorted((known[code], code) for code, _ in values if known[code] is not None)
        for value, code in values:
            yield value, self.where(codes == code)

    def executions(self) -> Iterator[tuple[str, str | None, NDArray[np.int64]]]:
        """Each collective and group, with the places of its events in order of time."""
        for name, places in self.groups("collective").items():
            places = places[np.argsort(self["t0_ns"][places], kind="stable")]
            for code, some in places_by_value(self.codes("group")[places]).items():
                yield name, self.texts("group")[code], places[some]

    def union(self, mask: Mask | NDArray[np.int64] | slice = slice(None)) -> Union:
        return union(self["t0_ns"][mask], self["t1_ns"][mask])

    @cached_property
    def work(self) -> "Rows":
        """The rows of work on devices, without the marks of the host."""
        return self.where(~self.equal("kind", *HOST_KINDS))

    @cached_property
    def counted(self) -> Mask:
        """Marks the rows that lists of a step's work count: of ranks that mark steps, no work launched,
        and no range and module begun, outside of the steps. Unknown launches may be in any of them."""
        outside = self["step"] == NULL
        marked = np.unique(self["rank"][~outside])
        begun = (self["launch_ns"] != NULL) | self.equal("kind", "range", "module")
        return ~(outside & begun & np.isin(self["rank"], marked))

    @property
    def durations(self) -> Integers:
        """Nanoseconds of each row."""
        return self["t1_ns"] - self["t0_ns"]


def rows_of(events: Events) -> Rows:
    """The event table as arrays."""

    @cache
    def known(name: str) -> tuple[NDArray, NDArray[np.int32]]:
        """The texts of a column, then None; and for each text of the table its place among them. The
        place of null follows that of the last text."""
        values = events.columns[name]
        present = np.flatnonzero(np.bincount(values[values != NULL]))
        order: dict[str, int] = {}
        places = [order.setdefault(events.texts[k], len(order)) for k in present.tolist()]
        numbers = np.full(len(events.texts) + 1, len(order), np.int32)
        numbers[present] = places
        return np.array([*order, None], dtype=object), numbers

    def column(name: str, places: Places) -> NDArray:
        values = events.columns[name][places]
        if name not in TEXTS:
            return values
        values[values == NULL] = -1  # behind the last text
        return known(name)[1][values]

    return Rows(column, lambda name: known(name)[0])


def total(values: Integers) -> int | None:
    """The sum; null if any value is null, or without values."""
    return None if not len(values) or (values == NULL).any() else int(values.sum())


def ratio(part: int | None, whole: int | None) -> float | None:
    """``part / whole``; null if either is null, or the whole is zero."""
    return part / whole if part is not None and whole else None
