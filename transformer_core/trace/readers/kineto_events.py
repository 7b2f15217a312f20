"""The events of Kineto traces of any size: the text in pieces of whole events, which become typed
records, decoded in bulk or, if any is malformed, one by one.
"""

import gzip
import io
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import islice
from operator import or_
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw, Struct

from transformer_core.trace.events.process import LeftOut, NotATrace, TraceError

_CHUNK = 1 << 19
_TRIES = 40
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write before a text
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}(\s*,?\s*\])\s*[,}]")
"""Some programs that cut traces leave a comma after the last event."""
_BETWEEN = re.compile(rb"\s*,\s*(?=\{)")
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
_SUSPECT = re.compile(rb"[:\[,]\s*-?(?:[Ii]nf|[Nn]a[Nn])")
_LONGEST = 1 << 26  # more bytes than any event or the rest of a trace has
_NO_NUMBER = re.compile(rb'("(?:[^"\\]|\\.)*")|(-?\b(?:[Ii]nf(?:inity)?|[Nn]a[Nn])\b)')
"""A text, or an invalid JSON number that some profilers write."""
_SURROGATES = re.compile(
    rb"(\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Lone surrogates; escaped backslashes and complete pairs are matched first."""


_KEY = b'"traceEvents"'
_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\]]")
WRITERS = "give a file that export_chrome_trace or tensorboard_trace_handler wrote"


class Damaged(ValueError):
    """The text stops being JSON at some place."""


def repaired(text: bytes) -> bytes:
    """``text`` with null for invalid numbers, and without lone surrogates or invalid UTF-8."""
    if _SUSPECT.search(text):
        text = _NO_NUMBER.sub(lambda found: found[1] or b"null", text)
    if b"\\ud" in text or b"\\uD" in text:
        text = _SURROGATES.sub(lambda found: found[1] or b"\\ufffd", text)
    return text.decode("utf-8", "replace").encode()


def open_trace(path: Path) -> BinaryIO:
    """Opens a trace; decompresses it if it begins like gzip, whatever its name."""
    stream = path.open("rb")
    start = stream.read(2)
    stream.seek(0)
    if start == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), _CHUNK)
    return stream


class EventText:
    """Iterates over the events in pieces, each a result of ``decode``.

    ``decode`` takes a JSON list and raises :class:`msgspec.DecodeError` for anything else; if a piece
    ends inside an event, a shorter one is tried. ``head`` is the rest of the file.
    """

    def __init__(self, path: Path, decode: Any) -> None:
        self.path, self.decode = path, decode
        self.head: dict[str, Any] = {}
        self.seen = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            with open_trace(self.path) as stream:
                yield from self._pieces(stream)
        except RecursionError:
            raise TraceError(
                self.path,
                f"contains lists nested hundreds deep, after {self.seen:,} events",
                "record it again, or leave out the event",
            ) from None
        except (*_DAMAGE, Damaged) as error:
            reason = str(error).strip().partition("\n")[0]
            raise TraceError(
                self.path,
                f"is damaged or cut off after {self.seen:,} events ({reason})",
                "record it again, and let the program end before the file is copied",
            ) from None
        except OSError as error:
            raise TraceError(
                self.path,
                f"cannot be read ({error.strerror or error})",
                "check its path and permissions",
            ) from None

    def _pieces(self, stream: BinaryIO) -> Iterator[Any]:
        head, text, tail = self._begin(stream)
        wanted = _CHUNK
        while more := stream.read(_CHUNK):
            text += more
            if len(text) < wanted:
                continue
            events, text = self._whole_events(text)
            if not events and self._ends(text):
                text += stream.read(_LONGEST)
                break
            # If no end of an event is found, later text may hold one.
            wanted = _CHUNK if events else 2 * len(text)
            if wanted > _LONGEST:
                raise Damaged("no event ends where it should")
            if events:
                self.seen += len(events)
                yield events
        events, tail = self._last_events(text + tail)
        self.seen += len(events)
        if events:
            yield events
        self._read_head(head, tail)

    def _begin(self, stream: BinaryIO) -> tuple[bytes, bytes, bytes]:
        """The text before the list of events, the part of the list read so far, and the text to add
        after the list."""
        text, place = bytearray(), 0
        while True:
            more = stream.read(_CHUNK)
            text += more
            if text[257:262] == b"ustar":
                raise NotATrace(self.path, "is a tar archive", "unpack it first: tar -xf")
            # Only the key may have been read; its list may follow in the next read.
            if found := _EVENTS.search(text, place):
                return bytes(text[: found.end()]), bytes(text[found.end() :]), b""
            if _ARRAY.match(text):  # the events alone, without an object around them
                return b'{"traceEvents":[', bytes(text[text.index(b"[") + 1 :]), b"}"
            if not more:
                raise self._foreign(bytes(text))
            if len(text) > _LONGEST:
                reason = f"has no traceEvents in its first {_LONGEST >> 20} MB"
                raise NotATrace(self.path, reason, WRITERS)
            place = max(place, text.rfind(_KEY), len(text) - len(_KEY))

    def _whole_events(self, text: bytes) -> tuple[Any, bytes]:
        """The events at the beginning of a text, and the rest of the text."""
        end = len(text)
        for _ in range(_TRIES):
            end = text.rfind(b"}", 0, end)
            if end < 0:
                break
            if after := _BETWEEN.match(text, end + 1):
                try:
                    whole = b"".join((b"[", memoryview(text)[: end + 1], b"]"))
                    return self.decode(whole), text[after.end() :]
                except msgspec.DecodeError:
                    continue  # a brace inside an event, or after the last one
        return [], text

    def _ends(self, text: bytes) -> bool:
        """Whether the list of events ends in a text; decoding would count what is left out twice."""
        for found in islice(_END.finditer(text), _TRIES):
            with suppress(msgspec.DecodeError):
                _TEXTS.decode(repaired(b"[" + text[: found.start(1)] + b"]"))
                return True
        return False

    def _last_events(self, text: bytes) -> tuple[list[Any], bytes]:
        """The events up to the end of their list, and the text after it."""
        if empty := re.match(rb"\s*\]", text):
            return [], text[empty.end() :]
        error = "it ends inside an event"
        if text.lstrip()[:1] not in (b"{", b""):
            error = "its list holds something other than events"
        for found in reversed(list(_END.finditer(text))[-_TRIES:]):
            try:
                return self.decode(b"[" + text[: found.start(1)] + b"]"), text[found.end(1) :]
            except msgspec.DecodeError as problem:
                error = str(problem)
        self.seen += len(self._whole_events(text)[0])
        raise Damaged(error)

    def _read_head(self, head: bytes, tail: bytes) -> None:
        if _EVENTS.search(tail):
            raise TraceError(
                self.path, "holds two lists of events (traceEvents)", "make a file of each"
            )
        text = (head + b"]" + tail).removeprefix(_MARK)
        for candidate in (text, repaired(text)):
            try:
                found = msgspec.json.decode(candidate)
                break
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = None
        if not isinstance(found, dict):
            raise Damaged("it does not end where it should")
        self.head = found

    def _foreign(self, text: bytes) -> TraceError:
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if text.lstrip()[:1] == b"{" and b'"schemaVersion"' in text:
                raise Damaged(str(error)) from None
        reason = "is not a torch.profiler trace: it has no traceEvents"
        if text.lstrip(_MARK + b" \t\r\n")[:1] == b"[":
            reason = "is not a torch.profiler trace: it is a list, but not of events"
        return NotATrace(self.path, reason, WRITERS)


DEVICE = {
    name: name.removeprefix("gpu_")
    for name in ("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset")
}
"""Kinds of device events by category in lower case; the names without gpu_ are the old ones."""

OTHER_DEVICES = ("xpu", "privateuse1")
"""Devices with runtimes of their own; those of all other runtimes, including ROCm's, are cuda."""

LAUNCHES = (
    *("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"),
    *(f"{device}_{level}" for device in OTHER_DEVICES for level in ("runtime", "driver")),
)

UNREAD = ("mtia_ccp_events", "mtia_workloadd", "hpu_op")
"""Accelerator events that are neither kernels nor copies in the sense of GPUs."""

OPERATORS = ("cpu_op", "operator")

MEMORY = "[memory]"  # the name of events of the allocator
MEMORY_CATEGORIES = ("cpu_instant_event",)

_EXACT_MICROSECONDS = 2**42
"""Beyond it, a time in microseconds as a double is not exact to the nanosecond."""
_FIELDS = "a field is missing or of the wrong kind"


class Communication(Struct, gc=False, frozen=True, rename={"collective": "Collective name"}):
    """PyTorch's description of a collective, on its kernel or on ``record_param_comms``."""

    collective: str | None = None
    dtype: str | None = None
    sent: int | None = msgspec.field(default=None, name="In msg nelems")
    received: int | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group_name: str | None = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")


class DeviceArgs(Communication, gc=False, frozen=True):
    device: int | None = None
    stream: int | str | None = None
    context: int | str | None = None
    correlation: int | None = None
    bytes: int | None = None
    graph: int | None = msgspec.field(default=None, name="graph id")
    node: int | None = msgspec.field(default=None, name="graph node id")


class LaunchArgs(Struct, gc=False, frozen=True):
    correlation: int | None = None


class OperatorArgs(Communication, gc=False, frozen=True):
    """The inputs of an operator as texts; for ``record_param_comms``, the description of a collective;
    for a kernel of TorchInductor, the work counted by its compiler."""

    dims: Raw = msgspec.field(default=Raw(), name="Input Dims")
    old_dims: Raw = msgspec.field(default=Raw(), name="Input dims")
    types: Raw = msgspec.field(default=Raw(), name="Input type")
    concrete: Raw = msgspec.field(default=Raw(), name="Concrete Inputs")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    stack: str = msgspec.field(default="", name="Call stack")
    kernel_flop: Raw = Raw()
    kernel_num_gb: Raw = Raw()


class MemoryArgs(Struct, gc=False, frozen=True):
    device: int | None = msgspec.field(default=None, name="Device Id")
    kind: int | None = msgspec.field(default=None, name="Device Type")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")


class AnyEvent(Struct, gc=False):
    """Fields that are not listed are skipped without being decoded."""

    ph: str = ""
    name: str = ""


class Timed(AnyEvent, gc=False):
    ts: Any = math.nan
    dur: Any = math.nan
    pid: int | str = ""
    tid: int | str = ""


class DeviceEvent(Timed, gc=False):
    args: DeviceArgs = DeviceArgs()


class LaunchEvent(Timed, gc=False):
    args: LaunchArgs = LaunchArgs()


class OperatorEvent(Timed, gc=False):
    args: OperatorArgs = OperatorArgs()


class MemoryEvent(Timed, gc=False):
    args: MemoryArgs = MemoryArgs()


_KINDS: dict[str, type[Timed]] = {
    **dict.fromkeys(DEVICE, DeviceEvent),
    **dict.fromkeys(LAUNCHES, LaunchEvent),
    **dict.fromkeys((*OPERATORS, "user_annotation"), OperatorEvent),
    **dict.fromkeys(("python_function", *UNREAD), Timed),
    **dict.fromkeys(MEMORY_CATEGORIES, MemoryEvent),
}
"""Types by categories in lower case."""
_USUAL = (
    *("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "ac2g"),
    *("user_annotation", "python_function", *MEMORY_CATEGORIES),
)
_MOST_CATEGORIES = 64


def _struct(base: type[Struct], exact: bool, tag: str | None = None) -> type[Struct]:
    """An event with times as doubles or, slower, as exact decimals."""
    times = (Decimal | None, None) if exact else (int | float, math.nan)
    fields = [(field, *times) for field in ("ts", "dur")] if issubclass(base, Timed) else []
    return msgspec.defstruct(
        base.__name__, fields, bases=(base,), gc=False, tag=tag, tag_field=tag and "cat"
    )


_EXACT = {kind: msgspec.json.Decoder(_struct(kind, exact=True)) for kind in _KINDS.values()}


class _Head(AnyEvent, gc=False):
    cat: str = ""


_HEAD = msgspec.json.Decoder(_Head)
_TEXTS = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True)
class Piece:
    count: int
    runs: dict[str, list[Any]]

    def __len__(self) -> int:
        return self.count


class EventDecoder:
    """Decodes many events with their args at once, each category to its own type. This takes a third
    less time than decoding args separately, but fails on malformed events; then the events are
    decoded one by one. New categories are learned as they appear."""

    def __init__(self, left_out: LeftOut) -> None:
        self._left_out = left_out
        self._exact = False
        self._categories: list[str] = []
        self._learn(_USUAL)

    def __call__(self, text: bytes) -> Piece:
        """The events of a JSON list; msgspec.DecodeError for anything else."""
        try:
            events = self._decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._one_by_one(text)
        found: defaultdict[type, list[Any]] = defaultdict(list)
        for event in events:
            found[type(event)].append(event)
        # Sampled by type: a sample of all events may contain only arrows, which have no time.
        some = (one for mine in found.values() for one in mine[:: max(1, len(mine) // 16)])
        starts = (getattr(one, "ts", 0) for one in some)
        if not self._exact and any(
            isinstance(ts, float) and abs(ts) >= _EXACT_MICROSECONDS for ts in starts
        ):
            self._exact = True
            self._learn(())
            return self(text)
        runs = {}
        for kind, mine in found.items():
            phases = {event.ph for event in mine}
            memory = issubclass(kind, MemoryEvent)
            # Separate begins and ends are counted, and memory events may have other categories.
            if phases & ({"B", "E"} if memory else {"B", "E", "i"}):
                return self._one_by_one(text)
            if phases != {"X"} or memory:
                mine = [event for event in mine if event.ph == ("i" if memory else "X")]
            if mine and issubclass(kind, Timed):
                runs[self._names[kind]] = mine
        return Piece(len(events), runs)

    def _learn(self, categories: Collection[str]) -> None:
        new = [name for name in categories if name and name not in self._categories]
        if len(self._categories) + len(new) <= _MOST_CATEGORIES:
            self._categories += new
        self._names = {
            _struct(_KINDS.get(name.lower(), AnyEvent), self._exact, name): name
            for name in self._categories
        }
        union: Any = reduce(or_, self._names)
        self._decoder = msgspec.json.Decoder(list[union])

    def _one_by_one(self, text: bytes) -> Piece:
        try:
            texts = _TEXTS.decode(text)
            text.decode()
        except (msgspec.DecodeError, UnicodeDecodeError):
            if (better := repaired(text)) == text:
                raise
            texts = _TEXTS.decode(better)
        found: defaultdict[str, list[Any]] = defaultdict(list)
        categories = {}
        for one in texts:
            try:
                head = _HEAD.decode(one)
                categories[head.cat] = True
                memory = head.name == MEMORY
                category = MEMORY_CATEGORIES[0] if memory else head.cat
                kind = _KINDS.get(category.lower())
                if kind and (memory or (head.ph == "X" and kind is not MemoryEvent)):
                    found[category].append(_EXACT[kind].decode(one))
                elif head.ph in ("B", "E"):
                    self._left_out.add("they are separate begins and ends, not complete events")
            except msgspec.ValidationError as problem:
                self._left_out.add(_FIELDS, first=str(problem))
        if set(categories) - {*self._categories, ""}:
            self._learn(categories)
        return Piece(len(texts), found)
