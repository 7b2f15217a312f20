"""Streaming reader of Kineto traces, the JSON files of torch.profiler.

Only a few numbers of each event are kept, so traces of gigabytes fit into memory. Timestamps are
microseconds, with decimals except in old traces; they become nanoseconds without rounding.
"""

import math
import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from transformer_core.common.progress import Progress
from transformer_core.trace.events import process
from transformer_core.trace.events.collectives import collective_named, message_bytes
from transformer_core.trace.events.columns import NULL, Columns, Integers, or_null
from transformer_core.trace.events.operators import COMPILED, element_bytes
from transformer_core.trace.events.phases import MODULE, own_line
from transformer_core.trace.events.process import NotATrace, ProcessTrace, Source, TraceError
from transformer_core.trace.readers import kineto_events as categories
from transformer_core.trace.readers.kineto_events import (
    MEMORY,
    Communication,
    EventDecoder,
    EventText,
    OperatorArgs,
)

COLLECTIVE_TOLD = "record_param_comms"  # the operator with which PyTorch describes a collective
COLLECTIVE = re.compile(r"(nccl|gloo|ucc|mpi|rccl|xccl):.*")

_COPY = re.compile(r"(?:Memcpy|Copy)\s*([HDPAMS])\w*?(?:to|2)([HDPAMS])", re.IGNORECASE)
"""``Memcpy HtoD (Pinned -> Device)``; ``CopyHostToDevice`` under ROCm; ``Memcpy M2D (Memory -> Device)``
on an XPU, where memory is the host's."""

_NO_RANK = 2**20  # more than any training has
_NO_TIME = 2**61  # in nanoseconds; with the time of an event added it still fits into 64 bits


def read_kineto(path: Path) -> Source[ProcessTrace]:
    """Reads the process of a trace; TraceError if the file is damaged or not a Kineto trace."""
    return KinetoReader(path).read()


class KinetoReader:
    """Collects the events of a file by category, in large batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trace = ProcessTrace(pid=0)
        self.left_out = self.trace.left_out
        self.launched = 0
        self.processes: set[int | str] = set()
        self._takers: dict[str, Any] = {
            "user_annotation": self._ranges,
            "python_function": self._functions,
            **dict.fromkeys(categories.MEMORY_CATEGORIES, self._memory),
            **dict.fromkeys(categories.OPERATORS, self._operators),
            **{
                name: partial(self._device_events, kind) for name, kind in categories.DEVICE.items()
            },
            **{name: partial(self._launches, name) for name in categories.LAUNCHES},
            **{name: partial(self.left_out.unread, name) for name in categories.UNREAD},
        }

    def read(self) -> Source[ProcessTrace]:
        text = EventText(self.path, EventDecoder(self.left_out))
        known = False
        with Progress(f"Read {self.path.name}", "events") as progress:
            for piece in text:
                known |= bool(piece.runs)
                for category, events in piece.runs.items():
                    self._takers[category.lower()](events)
                progress.update(len(piece))
        known |= bool(self.left_out.total or (text.seen and "schemaVersion" in text.head))
        if not known:
            reason = "is not a torch.profiler trace: it has no traceEvents of the profiler"
            raise NotATrace(self.path, reason, categories.WRITERS)
        if len(self.processes) > 1:
            raise TraceError(
                self.path,
                f"holds events of {len(self.processes)} processes, and kernels do not name theirs",
                "give one file for each rank, as the profiler wrote it",
            )
        self.trace.pid = int(numbers([*self.processes, 0])[0])
        self._read_head(text.head)
        self.trace.settle()
        notes = self.left_out.notes()
        if self.launched and not len(self.trace.device):
            told = f" ({'; '.join(notes)})" if notes else ""
            raise TraceError(
                self.path,
                f"has kernel launches ({self.launched:,}) but no kernels{told}",
                "record with ProfilerActivity.CUDA, where CUPTI is permitted and no other profiler "
                "runs",
            )
        if self.left_out.accelerators and not len(self.trace.device):
            raise TraceError(
                self.path,
                "comes from an accelerator whose events are not supported "
                f"({', '.join(sorted(self.left_out.accelerators))}): the events of its CPU alone do not "
                "show where the time goes",
                "give traces of GPUs, or of trainings on a CPU",
            )
        version = text.head.get("schemaVersion")
        notes += process.without_kernels([self.trace], self.launched)
        return Source("kineto", None if version is None else str(version), [self.trace], notes)

    def _read_head(self, head: dict[str, Any]) -> None:
        distributed = head.get("distributedInfo")
        if isinstance(distributed, dict):
            self.trace.ranks = whole(distributed.get("world_size"), 1, _NO_RANK)
            limit = self.trace.ranks or _NO_RANK
            self.trace.rank = whole(distributed.get("rank"), 0, limit)
            self.trace.usual_group = process.usual_group(distributed)
            # The texts of events omit ranks of large groups; the head lists all of them.
            known = process.groups_by_name(distributed)
            texts = self.trace.names.texts
            texts[:] = [known.get(text, text) if text[:1] == "#" else text for text in texts]
        self.trace.offset_ns = whole(head.get("baseTimeNanoseconds"), 0, _NO_TIME) or 0

    def _device_events(self, kind: str, events: Sequence[Any]) -> None:
        ids = self.trace.names
        events, t0, t1 = times(events, self.left_out)
        args = [event.args for event in events]
        told = [a if a.collective else None for a in args]
        copies = [copy_kind(event.name) if kind == "memcpy" else None for event in events]
        self.trace.device.extend(
            kind=ids[kind],
            name=self._names(events),
            # In old traces, process and thread are the device and the stream.
            device=numbers([e.pid if e.args.device is None else e.args.device for e in events]),
            stream=numbers([e.tid if e.args.stream is None else e.args.stream for e in events]),
            context=numbers([a.context for a in args]),
            t0=t0,
            t1=t1,
            correlation=numbers([a.correlation for a in args]),
            bytes=numbers([a.bytes if a.collective is None else told_bytes(a) for a in args]),
            copy=numbers([None if copy is None else ids[copy] for copy in copies]),
            group_size=numbers([a and a.group_size for a in told]),
            group=numbers([a and self._group(a) for a in told]),
            collective=numbers([a and ids[str(a.collective)] for a in told]),
            graph=numbers([a.graph for a in args]),
            node=numbers([a.node for a in args]),
        )

    def _launches(self, category: str, events: Sequence[Any]) -> None:
        if (device := category.partition("_")[0]) in categories.OTHER_DEVICES:
            self.trace.accelerator = device
        self.launched += sum(process.launches(event.name) for event in events)
        correlation = numbers([event.args.correlation for event in events])
        t0 = nanoseconds([event.ts for event in events])
        kept = (t0 != NULL) & (correlation != NULL)
        self.processes.update(event.pid for event in events)
        found = {"correlation": correlation, "thread": numbers([e.tid for e in events]), "t0": t0}
        self.trace.launches.extend(**{name: values[kept] for name, values in found.items()})
        if waiting := [event for event in events if process.waits(event.name)]:
            _, at = self._placed(waiting)
            self.trace.waits.extend(**at)

    def _operators(self, events: Sequence[Any]) -> None:
        special = [event for event in events if event.name == COLLECTIVE_TOLD]
        if special:
            self._collectives(special)
            events = [event for event in events if event.name != COLLECTIVE_TOLD]
        events, at = self._placed(events)
        self.processes.update(event.pid for event in events)
        self.trace.operators.extend(
            **at,
            name=self._names(events),
            call=self.trace.calls(calls_of(events)),
            sequence=numbers([event.args.sequence for event in events]),
        )
        # Old traces attach the stack to the operator; new ones have events for Python functions.
        if any(event.args.stack for event in events):
            lines = [own_line(event.args.stack) for event in events]
            some = np.flatnonzero([line is not None for line in lines])
            name = self.trace.names.of(line for line in lines if line)
            at = {column: values[some] for column, values in at.items()}
            self.trace.frames.extend(**at, name=name)

    def _ranges(self, events: Sequence[Any]) -> None:
        talks = [event for event in events if COLLECTIVE.fullmatch(event.name)]
        if talks:
            self._collectives(talks)
            events = [event for event in events if not COLLECTIVE.fullmatch(event.name)]
        self._marks(self.trace.ranges, events)

    def _marks(self, rows: Columns, events: Sequence[Any]) -> None:
        events, at = self._placed(events)
        rows.extend(**at, name=self._names(events))

    def _placed(self, events: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Integers]]:
        """The events with possible times, and their threads, begins and ends."""
        events, t0, t1 = times(events, self.left_out)
        return events, {"thread": numbers([event.tid for event in events]), "t0": t0, "t1": t1}

    def _names(self, events: Sequence[Any]) -> Integers:
        return self.trace.names.of(event.name for event in events)

    def _functions(self, events: Sequence[Any]) -> None:
        if modules := [event for event in events if event.name.startswith(MODULE)]:
            self._marks(self.trace.ranges, modules)
        if frames := [event for event in events if own_line(event.name)]:
            self._marks(self.trace.frames, frames)

    def _collectives(self, events: Sequence[Any]) -> None:
        """Takes ranges around collectives, or PyTorch's description of one."""
        events, at = self._placed(events)
        self.processes.update(event.pid for event in events)
        places = zip(*(values.tolist() for values in at.values()), strict=True)
        for event, place in zip(events, places, strict=True):
            name, group, members, args = event.name, None, None, event.args
            described = name == COLLECTIVE_TOLD
            if not described:
                size = input_bytes(args)
            elif args.collective:
                name, size = f"nccl:{args.collective}", told_bytes(args)
                group, members = args.group_size, self._group(args)
            else:
                continue
            number = self.trace.names[name]
            told = map(or_null, (size, group, members))
            self.trace.collectives.add(*place, number, *told, int(described))

    def _memory(self, events: Sequence[Any]) -> None:
        events = [e for e in events if e.name == MEMORY and e.args.allocated is not None]
        t0 = nanoseconds([event.ts for event in events])
        kept = t0 != NULL
        self.trace.memory.extend(
            t0=t0[kept],
            device=numbers([e.args.device if e.args.kind else -1 for e in events])[kept],
            allocated=numbers([e.args.allocated for e in events])[kept],
        )

    def _group(self, told: Communication) -> int | None:
        found = process.group_of(told.group_ranks)
        if found is None and told.group_name:
            found = process.group_named(told.group_name)
        return None if found is None else self.trace.names[found]


_LATEST = 2**62


def times(
    events: Sequence[Any], left_out: process.LeftOut
) -> tuple[Sequence[Any], Integers, Integers]:
    """Events with begin and end in nanoseconds, without events that have impossible times."""
    t0 = nanoseconds([event.ts for event in events])
    dur = nanoseconds([event.dur for event in events])
    good = (t0 != NULL) & (dur >= 0)
    if good.all():
        return events, t0, t0 + dur
    negative = int(((t0 != NULL) & (dur < 0) & (dur != NULL)).sum())
    left_out.add("they end before they begin", negative)
    left_out.add("their time is missing or not finite", int((~good).sum()) - negative)
    kept = [event for event, fine in zip(events, good.tolist(), strict=True) if fine]
    return kept, t0[good], t0[good] + dur[good]


def nanoseconds(values: list[Any]) -> Integers:
    """Converts microseconds to whole nanoseconds; null for anything but a number in range."""
    if values and isinstance(values[0], (Decimal, type(None))):
        return np.array([_exact(value) for value in values], np.int64)
    try:
        numbers = np.frombuffer(array("d", values), np.float64)
    except OverflowError:
        numbers = np.array([v if abs(v) < _LATEST else np.inf for v in values], np.float64)
    fine = np.abs(numbers) < _LATEST / 1000
    numbers = np.where(fine, numbers, 0)
    whole = np.rint(numbers)
    # For whole numbers, the product may have more digits than a double.
    found = np.where(
        whole == numbers, whole.astype(np.int64) * 1000, np.rint(numbers * 1000).astype(np.int64)
    )
    return np.where(fine, found, NULL)


def _exact(value: Decimal | None) -> int:
    # Arithmetic with huge exponents would never end, or fail.
    if value is None or not value.is_finite() or value.adjusted() > 18:
        return NULL
    if value.adjusted() < -18:
        return 0
    found = round(value * 1000)
    return found if abs(found) < _LATEST else NULL


def numbers(values: Sequence[Any]) -> Integers:
    """Integers, or the first number in a text: old traces write ``stream 7``, those of an XPU contexts as
    ``0x55d08918fc78``; null for anything else."""
    with suppress(TypeError, OverflowError):
        return np.frombuffer(array("q", values), np.int64)  # the fastest conversion of a list
    with suppress(TypeError, OverflowError):
        known = array("q", [NULL if value is None else value for value in values])
        return np.frombuffer(known, np.int64)
    return np.array([_number(value) for value in values], np.int64)


def _number(value: int | str | None) -> int:
    if isinstance(value, str):
        found = re.search(r"0x([0-9a-f]{1,16})|-?\d{1,18}", value)
        value = int(found[0], 16 if found[1] else 10) if found else None
    return value if value is not None and abs(value) < _LATEST else NULL


def whole(value: Any, least: int, limit: int) -> int | None:
    """A whole number from ``least`` to below ``limit``; null for anything else."""
    return value if type(value) is int and least <= value < limit else None


def told_bytes(args: Communication) -> int | None:
    """The message size of an event that describes its collective."""
    width = element_bytes(args.dtype or "")
    if width is None or args.sent is None:
        return None
    return message_bytes(
        collective_named(args.collective or ""),
        args.sent * width,
        (args.received or 0) * width,
        args.group_size,
    )


def input_bytes(args: OperatorArgs) -> int | None:
    """The bytes of the inputs of a range around a collective."""
    total = 0
    for shape, kind in zip(process.list_of(args.dims), process.list_of(args.types), strict=False):
        tensor, width = process.tensor_of(shape), element_bytes(str(kind))
        total += width * math.prod(tensor) if tensor and width else 0
    return total or None


def copy_kind(name: str) -> str | None:
    """Source and destination of a copy from its name, as ``h2d``; null for any other name."""
    found = _COPY.match(name)
    return f"{found[1]}2{found[2]}".lower().replace("m", "h") if found else None


def calls_of(events: Sequence[Any]) -> list[process.Call]:
    """Operators with the arguments that determine their work."""
    found: list[process.Call] = [
        (e.name, bytes(e.args.dims or e.args.old_dims), bytes(e.args.types), b"") for e in events
    ]
    for place, event in enumerate(events):
        args = event.args
        if args.kernel_num_gb or args.kernel_flop:
            if COMPILED.match(event.name):
                told = (bytes(args.kernel_flop) or b"0", bytes(args.kernel_num_gb) or b"0")
                found[place] = (*found[place][:3], b"[%s,%s]" % told)
        elif "conv" in event.name:
            found[place] = (*found[place][:3], bytes(args.concrete))
    return found
