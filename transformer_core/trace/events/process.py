"""The result of a reader: the processes of a file, each with device events, launches, operators,
ranges and collectives; the events it left out, counted by reason; and the error for a file that
cannot be used.

Process groups are named by their ranks, ``0,1``, or by ``#`` and a name where those are unknown.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.trace.events.columns import NULL, Columns, Integers, Names
from transformer_core.trace.events.operators import UNKNOWN, Shape, Work, format_of, work_of


class LeftOut:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self.accelerators: set[str] = set()
        """Categories of events that are not read."""

    def add(self, reason: str, count: int = 1, first: str = "") -> None:
        if count:
            self._counts[reason] += count
            self._first.setdefault(reason, first)

    def unread(self, category: str, events: Sequence[object]) -> None:
        """Events of an accelerator whose trace has other events than a GPU's."""
        reason = f"an accelerator's of a kind that is not read ({category}), missing in all numbers"
        self.add(reason, len(events))
        self.accelerators.add(category)

    @property
    def total(self) -> int:
        return self._counts.total()

    @property
    def told(self) -> str:
        return f" ({'; '.join(self.notes())})" if self.total else ""

    def notes(self) -> list[str]:
        return [
            f"{count:,} {'event was' if count == 1 else 'events were'} left out: {reason}"
            + (f" ({first})" if (first := self._first[reason]) else "")
            for reason, count in self._counts.items()
        ]


UNKNOWN_GROUP = "#?"
"""One of several groups; the trace does not say which."""

_RANKS = re.compile(r"\[\s*\d+(\s*,\s*\d+)*\s*\]")


def group_named(name: str) -> str:
    return f"#{name}"


def group_of(ranks: str | list[int] | None) -> str | None:
    """The group of some ranks, given as a list or as text; null where some are left out of the
    text (PyTorch writes ``[0, 1, ..., 127]`` for large groups)."""
    if isinstance(ranks, str):
        if not _RANKS.fullmatch(ranks.strip()):
            return None
        ranks = [int(found) for found in re.findall(r"\d+", ranks)]
    if not ranks:
        return None
    return ",".join(map(str, sorted(ranks)))


def ranks_of(group: str) -> tuple[int, ...] | None:
    """The ranks of a group; null where they are unknown."""
    return None if group.startswith("#") else tuple(map(int, group.split(",")))


def groups_by_name(distributed: dict[str, Any]) -> dict[str, str]:
    """The groups that a trace's ``distributedInfo`` lists with ranks, by :func:`group_named`."""
    found = {}
    config = distributed.get("pg_config")
    for entry in config if isinstance(config, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks) and ranks:
            found[group_named(str(entry.get("pg_name")))] = group_of(ranks) or UNKNOWN_GROUP
    return found


def usual_group(distributed: dict[str, Any]) -> str | None:
    """The group of collectives that do not name theirs; null where nothing is said of groups.

    It is clear only if all groups of more than one rank have the same ones.
    """
    found = {group for group in groups_by_name(distributed).values() if "," in group}
    if not found:
        return None
    return found.pop() if len(found) == 1 else UNKNOWN_GROUP


_WAIT_NAME = re.compile(r"(cuda|cu|hip)\w*Synchronize\w*|(cuda|hip)Memcpy(_v\w+)?")
LAUNCH_NAME = re.compile(r"(cuda|cu|hip)(Ext)?(Module)?(Graph)?Launch\w*")


@cache
def launches(name: str) -> bool:
    return bool(LAUNCH_NAME.match(name))


@cache
def waits(name: str) -> bool:
    """Whether a call of the runtime returns only when a device has done its work."""
    return bool(_WAIT_NAME.fullmatch(name))


DAY_NS = 86_400 * 10**9
"""An event that is farther than this from the others belongs to no trace of a few steps."""

_NO_SIZE = 2**50  # more bytes than any device has
_NO_NUMBER = 2**31


Call = tuple[str, bytes | str, bytes | str, bytes | str]
"""An operator, and lists as texts of JSON: shapes and types of its inputs, and what else tells its
work: of a convolution the values of its inputs, of a compiled kernel what its compiler counted."""


@dataclass
class ProcessTrace:
    """Everything of one process, added row by row in any order. Times are nanoseconds."""

    pid: int
    rank: int | None = None  # global rank, where the trace says it
    ranks: int | None = None  # processes of the training, likewise
    offset_ns: int = 0  # the origin of its times, after the epoch of the clock
    usual_group: str | None = None
    """The process group of collectives that do not say theirs: its ranks, ``0,1``; ``#?`` where
    there are several; null where the trace tells nothing of groups."""
    accelerator: str = "cuda"  # the word before the numbers of its devices
    names: Names = field(default_factory=Names)
    device: Columns = field(
        default_factory=lambda: Columns(
            *("kind", "name", "device", "context", "stream", "t0", "t1", "correlation"),
            *("bytes", "copy", "group_size", "group", "collective", "graph", "node"),
        )
    )
    launches: Columns = field(default_factory=lambda: Columns("correlation", "thread", "t0"))
    waits: Columns = field(default_factory=lambda: Columns("thread", "t0", "t1"))
    """Calls in which the host waits for a device."""
    operators: Columns = field(
        default_factory=lambda: Columns("thread", "t0", "t1", "name", "call", "sequence")
    )
    ranges: Columns = field(default_factory=lambda: Columns("thread", "t0", "t1", "name"))
    collectives: Columns = field(
        default_factory=lambda: Columns(
            *("thread", "t0", "t1", "name", "bytes", "group_size", "group", "whole")
        )
    )
    frames: Columns = field(default_factory=lambda: Columns("thread", "t0", "t1", "name"))
    """Functions of Python that belong to the program, where stacks were recorded."""
    memory: Columns = field(default_factory=lambda: Columns("t0", "device", "allocated"))
    """Bytes that the allocator has given out on a device (-1 for the CPU), whenever they change."""
    work: list[Work] = field(default_factory=lambda: [UNKNOWN])
    """By call, a number that operators of one name and the same inputs share."""
    shapes: list[str] = field(default_factory=lambda: [""])
    """The shapes of the inputs as text, by call; before them the format of their numbers."""
    left_out: LeftOut = field(default_factory=LeftOut)
    _calls: dict[Call, int] = field(default_factory=dict)

    def calls(self, calls: list[Call]) -> Integers:
        """The numbers of calls: those of one operator with the same inputs share one."""
        found = list(map(self._calls.get, calls))
        if None in found:
            found = list(map(self._call, calls))
        return np.array(found, np.int64)

    def _call(self, call: Call) -> int:
        found = self._calls.get(call)
        name, shapes, kinds, more = call
        if found is None and not shapes and not more:
            found = self._calls[call] = 0
        if found is None:
            known, types = list_of(shapes), [str(kind) for kind in list_of(kinds)]
            found = self._calls[call] = len(self.work)
            tensors = [tensor_of(shape) for shape in known]
            self.work.append(work_of(name, tensors, types, list_of(more)))
            shown = [json.dumps(shape).replace(" ", "") for shape in known if shape]
            formats = {format_of(kind) for kind in types} - {None}
            told = [str(one) for one in formats] if len(formats) == 1 else []
            self.shapes.append(" ".join([*told, *shown]) if shown else "")
        return found

    def settle(self) -> None:
        """Leave out what cannot be: events without a device, far from all others, or there twice;
        and sizes that cannot be are unknown."""
        self._leave_out_nowhere()
        for rows in (self.device, self.collectives):
            for name, least, limit in (("bytes", 0, _NO_SIZE), ("group_size", 1, _NO_NUMBER)):
                values = rows[name]
                wrong = (values != NULL) & ((values < least) | (values >= limit))
                if wrong.any():
                    rows.replace(name, np.where(wrong, NULL, values))
        self._leave_out_strays()
        self._leave_out_doubles()

    def _leave_out_nowhere(self) -> None:
        device = self.device["device"]
        somewhere = (device >= 0) & (device < _NO_NUMBER)
        if not somewhere.all():
            self.left_out.add("they name no device", int((~somewhere).sum()))
            self.device.keep(somewhere)

    def _leave_out_strays(self) -> None:
        rows = self.device if len(self.device) else self.operators
        if not len(rows):
            return
        # The time of an event: the mean of two far from each other would be far from both.
        t0, half = rows["t0"], len(rows) // 2
        middle = int(np.partition(t0, half)[half])
        for columns in (
            *(self.device, self.launches, self.waits),
            *(self.operators, self.ranges, self.collectives, self.frames),
        ):
            t0 = columns["t0"]
            wrong = (t0 - middle > DAY_NS) | (middle - t0 > DAY_NS)
            if "t1" in columns:
                wrong |= columns["t1"] - t0 > DAY_NS
            if wrong.any():
                self.left_out.add("more than a day long, or away from the others", int(wrong.sum()))
                columns.keep(~wrong)

    def _leave_out_doubles(self) -> None:
        """The same event of a stream twice: two things never run at once on one."""
        names = ("device", "stream", "t0", "t1", "name", "correlation")
        rows = [self.device[name] for name in names]
        order = np.lexsort(rows)
        same = np.ones(max(0, len(order) - 1), np.bool_)
        for column in rows:
            same &= column[order[1:]] == column[order[:-1]]
        t0, t1, correlation = rows[2][order[1:]], rows[3][order[1:]], rows[5][order[1:]]
        same &= (t1 > t0) & (correlation != NULL)
        if same.any():
            kept = np.ones(len(order), np.bool_)
            kept[order[1:][same]] = False
            self.left_out.add("the trace holds them twice", int(same.sum()))
            rows.clear()
            self.device.keep(kept)


def without_kernels(traces: Sequence[ProcessTrace], launched: int) -> list[str]:
    """A note where calls launched kernels of which the file holds none."""
    found = {one.names.texts[kind] for one in traces for kind in np.unique(one.device["kind"])}
    if not found or not launched or found & {"kernel", "graph"}:
        return []
    return [
        f"{launched:,} calls launched kernels, but the trace holds none: what the device computed "
        "is unknown, and missing in every number"
    ]


def list_of(text: Any) -> Sequence[object]:
    try:
        found = json.loads(text if isinstance(text, str) else bytes(text)) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def tensor_of(shape: object) -> Shape | None:
    """The shape of an input that is a tensor; null for a number, a list of tensors, nothing."""
    if isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape):
        return shape
    return None


Process = TypeVar("Process")


@dataclass(frozen=True)
class Source(Generic[Process]):
    """A file, as the traces of its processes or as their rows of the event table."""

    format: Literal["nsys", "kineto"]
    version: str | None
    processes: list[Process]
    notes: list[str] = field(default_factory=list)


class TraceError(ConfigError):
    """A file of a profiler that cannot be used, said in one sentence."""

    def __init__(self, path: Path, message: str, remedy: str) -> None:
        super().__init__([ConfigProblem(str(path), WHOLE_FILE, None, message, remedy)])
        self.path, self.reason, self.remedy = path, message, remedy

    def __str__(self) -> str:
        return f"{self.path} {self.reason}: {self.remedy}"

    def __reduce__(self) -> tuple[type["TraceError"], tuple[Path, str, str]]:
        return type(self), (self.path, self.reason, self.remedy)


class NotATrace(TraceError):
    """A file that is something else: in a folder it is passed over."""


unusable = TraceError
