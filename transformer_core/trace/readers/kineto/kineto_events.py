"""The events of a Kineto trace as typed records: fast where all is well, one by one where not."""

import re
from array import array
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from transformer_core.trace.readers.columns import NULL, Integers
from transformer_core.trace.readers.kineto.kineto_stream import repaired
from transformer_core.trace.readers.left_out import LeftOut

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
    """What PyTorch says of a collective, on its kernel or on ``record_param_comms``."""

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
    if value is None or not value.is_finite():
        return NULL
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
