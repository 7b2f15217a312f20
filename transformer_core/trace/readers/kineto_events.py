"""The events of Kineto traces as typed records: fast for well-formed pieces, one by one otherwise.

Events are decoded with their args in one go, each category to its own type, which takes a third less
time than args apart but knows only traces that are as they should be; :func:`decode_events` reads all
else. Then times become nanoseconds, and the sizes of messages are read from what events say.
"""

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType
from numpy.typing import NDArray

from transformer_core.trace.events.collectives import collective_named, message_bytes
from transformer_core.trace.events.columns import NULL, Integers
from transformer_core.trace.events.operators import element_bytes
from transformer_core.trace.events.process import LeftOut
from transformer_core.trace.readers.kineto_stream import repaired

DEVICE = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
"""Kinds of device events by category in lower case; the names without gpu_ are the old ones."""

LAUNCHES = (
    *("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"),
    *("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"),
)

OTHER_RUNTIMES = {
    "xpu_runtime": "xpu",
    "xpu_driver": "xpu",
    "privateuse1_runtime": "privateuse1",
    "privateuse1_driver": "privateuse1",
}
"""Names of devices by the runtimes that launch on them; all others are called cuda, ROCm's too."""

UNREAD = ("mtia_ccp_events", "mtia_workloadd", "hpu_op")
"""Accelerator events that are not kernels or copies as GPUs have them."""

OPERATORS = ("cpu_op", "operator")

MEMORY = "[memory]"
"""The name of events of the allocator."""

MEMORY_CATEGORIES = ("cpu_instant_event",)

COLLECTIVE = re.compile(r"(nccl|gloo|ucc|mpi|rccl):.*")

_COPY = re.compile(r"(?:Memcpy|Copy)\s*([HDPA])\w*?to([HDPA])", re.IGNORECASE)
"""``Memcpy HtoD (Pinned -> Device)``; ``CopyHostToDevice`` under ROCm."""


def copy_kind(name: str) -> str | None:
    """Source and destination of a copy from its name, as ``h2d``; null for any other name."""
    found = _COPY.match(name)
    return f"{found[1]}2{found[2]}".lower() if found else None


_EXACT_MICROSECONDS = 2**42
"""Beyond it a double does not hold whole nanoseconds of a time in microseconds."""
_LATEST = 2**62
_FIELDS = "a field is missing or of the wrong kind"


class Event(Struct, gc=False):
    """An event. Fields that are not listed are skipped without being made."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float = float("nan")
    dur: int | float = float("nan")
    pid: int | str = ""
    tid: int | str = ""
    args: Raw = Raw()


class ExactEvent(Struct, gc=False):
    """The same with times as they are written, for those that a double cannot hold."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Decimal | None = None
    dur: Decimal | None = None
    pid: int | str = ""
    tid: int | str = ""
    args: Raw = Raw()


class Communication(Struct, gc=False, rename={"collective": "Collective name"}):
    """PyTorch's description of a collective, on its kernel or on ``record_param_comms``."""

    collective: str | None = None
    dtype: str | None = None
    sent: int | None = msgspec.field(default=None, name="In msg nelems")
    received: int | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group_name: str | None = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")


class DeviceArgs(Communication, gc=False):
    """Of a kernel, copy or memory set."""

    device: int | None = None
    stream: int | str | None = None
    context: int | None = None
    correlation: int | None = None
    bytes: int | None = None
    graph: int | None = msgspec.field(default=None, name="graph id")


class LaunchArgs(Struct, gc=False):
    """Of a call of the CUDA runtime or driver."""

    correlation: int | None = None


class OperatorArgs(Communication, gc=False):
    """Of an operator: the texts of the shapes and types of its inputs; of ``record_param_comms``,
    what it says of a collective."""

    dims: Raw = msgspec.field(default=Raw(), name="Input Dims")
    old_dims: Raw = msgspec.field(default=Raw(), name="Input dims")
    types: Raw = msgspec.field(default=Raw(), name="Input type")
    sequence: int = msgspec.field(default=-1, name="Sequence number")


class MemoryArgs(Struct, gc=False):
    """Of an event of the allocator."""

    device: int | None = msgspec.field(default=None, name="Device Id")
    kind: int | None = msgspec.field(default=None, name="Device Type")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")


Args = TypeVar("Args", bound=Struct)
AnyEvent = Event | ExactEvent

_FAST = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[ExactEvent])
_ONE = msgspec.json.Decoder(ExactEvent)
_TEXTS = msgspec.json.Decoder(list[Raw])


def decode_events(text: bytes, left_out: LeftOut) -> Sequence[AnyEvent]:
    """The events of a JSON list; those that are none are counted in ``left_out``.

    Raises :class:`msgspec.DecodeError` if ``text`` is no JSON.
    """
    try:
        events = _FAST.decode(text)
        if any(needs_digits(event.ts) for event in events):
            return _EXACT.decode(text)
        return events
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError):
        better = repaired(text)
        if better == text:
            raise
        text = better
    return list(_one_by_one(text, left_out))


def needs_digits(ts: float) -> bool:
    """Whether a time in microseconds has more digits than a double holds."""
    return isinstance(ts, float) and abs(ts) >= _EXACT_MICROSECONDS


def _one_by_one(text: bytes, left_out: LeftOut) -> Iterator[ExactEvent]:
    for raw in _TEXTS.decode(text):
        try:
            yield _ONE.decode(raw)
        except msgspec.ValidationError as problem:
            left_out.add(_FIELDS, first=str(problem))


class ArgsDecoder:
    """Decodes the ``args`` of many events at once."""

    def __init__(self, kind: type[Args]) -> None:
        self._many = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(kind)
        self._none = kind()

    def __call__(
        self, events: Sequence[AnyEvent], left_out: LeftOut
    ) -> tuple[Sequence[AnyEvent], list[Any]]:
        """Events with their args; events whose args are wrong are counted and left out. Args that
        were decoded with their events are as they are."""
        if events and not isinstance(events[0], AnyEvent):
            return events, [event.args or self._none for event in events]
        texts = [event.args or b"{}" for event in events]
        try:
            return events, self._many.decode(b"[" + b",".join(texts) + b"]")
        except msgspec.DecodeError:
            pass
        kept, found = [], []
        for event, text in zip(events, texts, strict=True):
            try:
                found.append(self._one.decode(text))
                kept.append(event)
            except msgspec.DecodeError as problem:
                left_out.add(_FIELDS, first=str(problem))
        return kept, found


def times(
    events: Sequence[AnyEvent], left_out: LeftOut
) -> tuple[Sequence[AnyEvent], Integers, Integers]:
    """Events with begin and end in nanoseconds, without those whose times cannot be."""
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


def starts(events: Sequence[AnyEvent]) -> tuple[Integers, NDArray[np.bool_]]:
    """Begins alone, and which are known; for events whose end does not matter."""
    t0 = nanoseconds([event.ts for event in events])
    return t0, t0 != NULL


def nanoseconds(values: list[Any]) -> Integers:
    """Microseconds as whole nanoseconds; null where there is no such number."""
    if values and isinstance(values[0], (Decimal, type(None))):
        exact = [_exact(value) for value in values]
        return np.array(exact, np.int64)
    try:
        numbers = np.frombuffer(array("d", values), np.float64)
    except OverflowError:
        numbers = np.array([v if abs(v) < _LATEST else np.inf for v in values], np.float64)
    fine = np.abs(numbers) < _LATEST / 1000
    numbers = np.where(fine, numbers, 0)
    whole = np.rint(numbers)
    # The product of a whole number may have more digits than a double.
    found = np.where(
        whole == numbers, whole.astype(np.int64) * 1000, np.rint(numbers * 1000).astype(np.int64)
    )
    return np.where(fine, found, NULL)


def _exact(value: Decimal | None) -> int:
    # Arithmetic with huge numbers of digits would never end, or fail.
    if value is None or not value.is_finite() or value.adjusted() > 18:
        return NULL
    if value.adjusted() < -18:
        return 0
    found = round(value * 1000)
    return found if abs(found) < _LATEST else NULL


def numbers(values: Sequence[int | str | None]) -> Integers:
    """Processes, threads, devices or streams: old traces write ``stream 7``. Null for nothing."""
    try:
        return _packed(values)
    except (TypeError, OverflowError):
        return np.array([_number(value) for value in values], np.int64)


def _packed(values: Sequence[Any]) -> Integers:
    """The fastest way from a list to an array; TypeError for what is no whole number."""
    return np.frombuffer(array("q", values), np.int64)


def _number(value: int | str | None) -> int:
    if isinstance(value, int) and abs(value) < _LATEST:
        return value
    digits = re.search(r"-?\d{1,18}", value) if isinstance(value, str) else None
    return int(digits[0]) if digits else NULL


def optional(values: Sequence[int | None]) -> Integers:
    """A column of numbers of which some are null."""
    try:
        return _packed(values)
    except (TypeError, OverflowError):
        pass
    try:
        return np.array([NULL if value is None else value for value in values], np.int64)
    except OverflowError:
        fine = [v if v is not None and abs(v) < _LATEST else NULL for v in values]
        return np.array(fine, np.int64)


def whole(value: Any, least: int, limit: int) -> int | None:
    """A whole number from ``least`` to below ``limit``; null for anything else."""
    return value if type(value) is int and least <= value < limit else None


_NAN = float("nan")
_MOST_CATEGORIES = 64


class Timed(Struct, gc=False):
    """An event with a begin and an end."""

    ph: str = ""
    name: str = ""
    ts: int | float = _NAN
    dur: int | float = _NAN
    pid: int | str = ""
    tid: int | str = ""


class DeviceEvent(Timed, gc=False):
    args: DeviceArgs | UnsetType = UNSET


class LaunchEvent(Timed, gc=False):
    args: LaunchArgs | UnsetType = UNSET


class OperatorEvent(Timed, gc=False):
    args: OperatorArgs | UnsetType = UNSET


class RangeEvent(Timed, gc=False):
    args: Raw = Raw()


class MemoryEvent(Struct, gc=False):
    ph: str = ""
    name: str = ""
    ts: int | float = _NAN
    args: MemoryArgs | UnsetType = UNSET


class OtherEvent(Struct, gc=False):
    """An event that is not used."""

    ph: str = ""


_KINDS: dict[str, type[Struct]] = {
    **dict.fromkeys(DEVICE, DeviceEvent),
    **dict.fromkeys(LAUNCHES, LaunchEvent),
    **dict.fromkeys(OPERATORS, OperatorEvent),
    "user_annotation": RangeEvent,
    **dict.fromkeys(("python_function", *UNREAD), Timed),
    **dict.fromkeys(MEMORY_CATEGORIES, MemoryEvent),
}
"""Types by categories in lower case."""
_USUAL = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")


@dataclass(frozen=True)
class Piece:
    """A stretch of a trace."""

    count: int
    """Events that were read."""
    runs: list[tuple[str, Sequence[Any]]]
    """Categories and the events of each, without those of no use."""

    def __len__(self) -> int:
        return self.count


class Unusual(Exception):
    """The events are malformed."""


class TypedDecoder:
    """Decodes stretches of events; categories are learned as they come."""

    def __init__(self) -> None:
        self._categories: dict[str, type[Struct]] = {}
        self._names: dict[type, str] = {}
        self._learn([*_USUAL, "user_annotation", "python_function", *MEMORY_CATEGORIES, "ac2g"])

    def decode(self, text: bytes | memoryview) -> Piece:
        """The events of a JSON list by runs of one category.

        Raises :class:`Unusual` for what is no such list, or holds events of which
        :func:`decode_events` must judge.
        """
        try:
            events = self._decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unusual from None
        found: defaultdict[type, list[Any]] = defaultdict(list)
        for event in events:
            found[type(event)].append(event)
        # Of each type: a stride over all events may meet only those without a time, the arrows.
        for mine in found.values():
            some = mine[:: max(1, len(mine) // 16)]
            if any(needs_digits(getattr(event, "ts", 0)) for event in some):
                raise Unusual
        runs = [(self._names[kind], self._wanted(kind, mine)) for kind, mine in found.items()]
        return Piece(len(events), [run for run in runs if run[1]])

    def learn(self, categories: set[str]) -> None:
        """Prepares decoders for categories that were seen."""
        new = [name for name in categories if name not in self._categories]
        if new and len(self._categories) + len(new) <= _MOST_CATEGORIES:
            self._learn(new)

    def _learn(self, categories: Sequence[str]) -> None:
        for name in categories:
            base = _KINDS.get(name.lower(), OtherEvent)
            made = msgspec.defstruct(
                f"Event{len(self._categories)}", [], bases=(base,), tag_field="cat", tag=name
            )
            self._categories[name] = made
            self._names[made] = name
        union: Any = reduce(or_, self._categories.values())
        self._decoder = msgspec.json.Decoder(list[union])

    def _wanted(self, kind: type[Struct], events: list[Any]) -> list[Any]:
        phases = {event.ph for event in events}
        if phases == {"X"} and issubclass(kind, Timed):
            return events
        wanted = "i" if issubclass(kind, MemoryEvent) else "X"
        # Begins and ends apart are counted, and memory may be told in other categories.
        if phases & ({"B", "E", "i"} - {wanted}):
            raise Unusual
        return [] if issubclass(kind, OtherEvent) else [e for e in events if e.ph == wanted]


def communication(args: Any) -> Communication | None:
    """The collective that an event describes; null where the description is malformed."""
    if isinstance(args, Communication):
        return args
    try:
        return msgspec.json.decode(args or b"{}", type=Communication)
    except msgspec.ValidationError:
        return None


def said_bytes(args: Communication) -> int | None:
    """Size of the message of an event that tells its collective."""
    width = element_bytes(args.dtype or "")
    if width is None or args.sent is None:
        return None
    return message_bytes(
        collective_named(args.collective or ""),
        args.sent * width,
        (args.received or 0) * width,
        args.group_size,
    )


def input_bytes(text: Any) -> int | None:
    """Bytes of the inputs of a range around a collective."""
    try:
        args = json.loads(bytes(text) or b"{}")
        pairs = zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    total = 0
    for shape, kind in pairs:
        width = element_bytes(str(kind))
        if width is None or not isinstance(shape, list) or not shape:
            continue
        if not all(type(side) is int and side >= 0 for side in shape):
            continue
        size = width
        for side in shape:
            size *= side
        total += size
    return total or None
