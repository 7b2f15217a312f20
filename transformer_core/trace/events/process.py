"""The result of a reader: the processes of a file, each with its device events, launches, operators,
ranges and collectives; the number of events left out, by reason; and the error for a file that cannot
be used.

Process groups are named by their ranks, ``0,1``, or by ``#`` and a name if the ranks are unknown.
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
from numpy.typing import NDArray

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.trace.events.columns import NULL, Columns, Integers, Names
from transformer_core.trace.events.operators import UNKNOWN, Shape, format_of, work_of


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
        """Counts events of an accelerator whose events differ from those of GPUs."""
        reason = f"they come from an unsupported accelerator ({category}); no number includes them"
        self.add(reason, len(events))
        self.accelerators.add(category)

    @property
    def total(self) -> int:
        return self._counts.total()

    def notes(self) -> list[str]:
        return [
            f"{count:,} {'event was' if count == 1 else 'events were'} left out: {reason}"
            + (f" ({first})" if (first := self._first[reason]) else "")
            for reason, count in self._counts.items()
        ]


UNKNOWN_GROUP = "#?"
"""The name of a group that the trace does not identify among several."""


def group_named(name: str) -> str:
    return f"#{name}"


def group_of(ranks: object) -> str | None:
    """The group of some ranks, given as a list or as text; null for anything else, such as a text
    that omits some: PyTorch writes ``[0, 1, ..., 127]`` for large groups."""
    known = list_of(ranks) if isinstance(ranks, str) else ranks
    if not isinstance(known, list) or not all(type(r) is int and r >= 0 for r in known):
        return None
    return ",".join(map(str, sorted(known))) or None


def ranks_of(group: str) -> tuple[int, ...] | None:
    """The ranks of a group; null if unknown."""
    return None if group.startswith("#") else tuple(map(int, group.split(",")))


def groups_by_name(distributed: dict[str, Any]) -> dict[str, str]:
    """The groups that a trace's ``distributedInfo`` lists with ranks, by :func:`group_named`."""
    found = {}
    config = distributed.get("pg_config")
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and (group := group_of(entry.get("ranks"))):
            found[group_named(str(entry.get("pg_name")))] = group
    return found


def usual_group(distributed: dict[str, Any]) -> str | None:
    """The group of collectives that name none; null if the trace lists no groups.

    It is known only if all groups of more than one rank consist of the same ranks.
    """
    found = {group for group in groups_by_name(distributed).values() if "," in group}
    if not found:
        return None
    return found.pop() if len(found) == 1 else UNKNOWN_GROUP


_WAIT_NAME = re.compile(
    r"(cuda|cu|hip|ze)\w*Synchronize\w*|(cuda|hip)Memcpy(WithStream)?(_v\w+)?|urEventWait|urQueueFinish"
)
LAUNCH_NAME = re.compile(
    r"(cuda|cu|hip)(Ext)?(Module)?(Graph)?Launch\w*|urEnqueueKernelLaunch\w*|ze\w*LaunchKernel\w*"
)


@cache
def launches(name: str) -> bool:
    return bool(LAUNCH_NAME.match(name))


@cache
def waits(name: str) -> bool:
    """Whether a call of the runtime returns only after a device has finished its work."""
    return bool(_WAIT_NAME.fullmatch(name))


DAY_NS = 86_400 * 10**9
"""An event farther than this from the others does not belong to a trace of a few steps."""

NO_SIZE = 2**50  # more bytes than any device has
_NO_NUMBER = 2**31


Call = tuple[str, bytes | str, bytes | str, bytes | str]
"""An operator and three lists as JSON texts: the shapes of its inputs, their types, and further values
that determine its work (inputs of a convolution; the counts of the compiler for a compiled kernel)."""


class ProcessTrace:
    """The events of one process, added in any order. Times are nanoseconds."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.rank: int | None = None  # global rank; null if the trace does not tell it
        self.ranks: int | None = None  # processes of the training; null likewise
        self.offset_ns = 0  # from the epoch of the clock to the origin of the times
        self.usual_group: str | None = None
        """The process group of collectives that name none: its ranks, ``0,1``; ``#?`` if there are
        several; null if the trace lists no groups."""
        self.accelerator = "cuda"  # prefix of device names
        self.names = Names()
        self.device = Columns(
            *("kind", "name", "device", "context", "stream", "t0", "t1", "correlation"),
            *("bytes", "copy", "group_size", "group", "collective", "graph", "node"),
        )
        self.launches = Columns("correlation", "thread", "t0")
        self.waits = Columns("thread", "t0", "t1")
        """Calls in which the host waits for a device."""
        self.operators = Columns("thread", "t0", "t1", "name", "call", "sequence")
        self.ranges = Columns("thread", "t0", "t1", "name")
        self.collectives = Columns(
            *("thread", "t0", "t1", "name", "bytes", "group_size", "group", "whole")
        )
        self.frames = Columns("thread", "t0", "t1", "name")
        """Python functions of the program, if stacks were recorded."""
        self.memory = Columns("t0", "device", "allocated")
        """Bytes allocated on a device (-1 for the CPU), at every change."""
        self.work = [UNKNOWN]
        """By call: a number shared by operators with the same name and inputs."""
        self.shapes = [""]
        """By call, the number format and the shapes of the inputs as text."""
        self.left_out = LeftOut()
        self._calls: dict[Call, int] = {}

    def calls(self, calls: list[Call]) -> Integers:
        """Numbers the calls; calls of one operator with the same inputs share a number."""
        found = list(map(self._calls.get, calls))
        if None in found:
            found = list(map(self._call, calls))
        return np.array(found, np.int64)

    def _call(self, call: Call) -> int:
        found = self._calls.get(call)
        name, shapes, kinds, more = call
        if not shapes and not more:
            found = self._calls[call] = 0
        if found is None:
            known, types = list_of(shapes), [str(kind) for kind in list_of(kinds)]
            found = self._calls[call] = len(self.work)
            tensors = [tensor_of(shape) for shape in known]
            self.work.append(work_of(name, tensors, types, list_of(more)))
            shown = [json.dumps(shape).replace(" ", "") for shape in known if shape]
            # The scales of products in 8 bits have 32.
            factors = types[:2] if "scaled_mm" in name else types
            formats = {format_of(kind) for kind in factors} - {None}
            told = [str(one) for one in formats] if len(formats) == 1 else []
            self.shapes.append(" ".join([*told, *shown]) if shown else "")
        return found

    def settle(self) -> None:
        """Drops impossible events: without a device, far from all others, duplicates, or memory that no
        device has. Other impossible sizes become unknown."""
        device = self.device["device"]
        self._leave_out(self.device, (device < 0) | (device >= _NO_NUMBER), "they name no device")
        for rows in (self.device, self.collectives):
            for name, least, limit in (("bytes", 0, NO_SIZE), ("group_size", 1, _NO_NUMBER)):
                values = rows[name]
                wrong = (values != NULL) & ((values < least) | (values >= limit))
                if wrong.any():
                    rows.replace(name, np.where(wrong, NULL, values))
        size = self.memory["allocated"]
        self._leave_out(self.memory, (size < 0) | (size >= NO_SIZE), "no device holds so much")
        self._leave_out_strays()
        self._leave_out_doubles()

    def _leave_out(self, rows: Columns, wrong: NDArray[np.bool_], reason: str) -> None:
        if wrong.any():
            self.left_out.add(reason, int(wrong.sum()))
            rows.keep(~wrong)

    def _leave_out_strays(self) -> None:
        rows = self.device if len(self.device) else self.operators
        if not len(rows):
            return
        # The time of an actual event: the mean of two distant ones would be far from both.
        t0, half = rows["t0"], len(rows) // 2
        middle = int(np.partition(t0, half)[half])
        for columns in (
            *(self.device, self.launches, self.waits),
            *(self.operators, self.ranges, self.collectives, self.frames, self.memory),
        ):
            t0 = columns["t0"]
            wrong = (t0 - middle > DAY_NS) | (middle - t0 > DAY_NS)
            if "t1" in columns:
                wrong |= columns["t1"] - t0 > DAY_NS
            self._leave_out(columns, wrong, "more than a day long, or away from the others")

    def _leave_out_doubles(self) -> None:
        """Drops duplicates: a stream never runs two events at the same time."""
        names = ("device", "stream", "t0", "t1", "name", "correlation")
        rows = [self.device[name] for name in names]
        order = np.lexsort(rows)
        same = np.zeros(len(order), np.bool_)
        same[order[1:]] = np.all(
            [column[order[1:]] == column[order[:-1]] for column in rows], axis=0
        )
        same &= (rows[3] > rows[2]) & (rows[5] != NULL)
        rows.clear()
        self._leave_out(self.device, same, "the trace holds them twice")


def without_kernels(traces: Sequence[ProcessTrace], launched: int) -> list[str]:
    """A note if the file has kernel launches but no kernels."""
    found = {one.names.texts[kind] for one in traces for kind in np.unique(one.device["kind"])}
    if not found or not launched or found & {"kernel", "graph"}:
        return []
    return [
        f"The trace has kernel launches ({launched:,}) but no kernels: the computation of the device "
        "is unknown and missing from every number"
    ]


def list_of(text: Any) -> list[Any]:
    try:
        found = json.loads(text if isinstance(text, str) else bytes(text)) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def tensor_of(shape: object) -> Shape | None:
    """The shape of an input that is a tensor; null for a number, a list of tensors or nothing."""
    if isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape):
        return shape
    return None


Process = TypeVar("Process")


@dataclass(frozen=True)
class Source(Generic[Process]):
    """A file, as the traces of its processes or their rows in the event table."""

    format: Literal["nsys", "kineto"]
    version: str | None
    processes: list[Process]
    notes: list[str] = field(default_factory=list)


class TraceError(ConfigError):
    """A profiler's file that cannot be used; the message is one sentence."""

    def __init__(self, path: Path, message: str, remedy: str) -> None:
        super().__init__([ConfigProblem(str(path), WHOLE_FILE, None, message, remedy)])
        self.path, self.reason, self.remedy = path, message, remedy

    def __str__(self) -> str:
        return f"{self.path} {self.reason}: {self.remedy}"

    def __reduce__(self) -> tuple[type["TraceError"], tuple[Path, str, str]]:
        return type(self), (self.path, self.reason, self.remedy)


class NotATrace(TraceError):
    """A file that is not a trace; skipped if it was found in a folder."""
