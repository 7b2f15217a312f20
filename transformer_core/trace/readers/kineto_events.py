"""The events of Kineto traces as typed records: decoded in bulk, or one by one if any is malformed."""

import math
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import Raw, Struct

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

COLLECTIVE_TOLD = "record_param_comms"  # the operator with which PyTorch describes a collective
COLLECTIVE = re.compile(r"(nccl|gloo|ucc|mpi|rccl):.*")

_COPY = re.compile(r"(?:Memcpy|Copy)\s*([HDPA])\w*?to([HDPA])", re.IGNORECASE)
"""``Memcpy HtoD (Pinned -> Device)``; ``CopyHostToDevice`` under ROCm."""


def copy_kind(name: str) -> str | None:
    """Source and destination of a copy from its name, as ``h2d``; null for any other name."""
    found = _COPY.match(name)
    return f"{found[1]}2{found[2]}".lower() if found else None


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
    context: int | None = None
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
                memory = head.ph == "i" and head.name == MEMORY
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
