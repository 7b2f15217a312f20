"""The events of a Kineto trace decoded with their args in one go, each category to its own type.

This takes a third less time than events whose args are decoded apart, but knows only traces that
are as they should be: for all else there is :func:`decode_events`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from transformer_core.trace.readers.kineto.kineto_events import (
    DeviceArgs,
    LaunchArgs,
    MemoryArgs,
    OperatorArgs,
    needs_digits,
)
from transformer_core.trace.readers.kineto.kineto_names import (
    DEVICE,
    LAUNCHES,
    MEMORY_CATEGORIES,
    OPERATORS,
    UNREAD,
)

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
    """What nobody asks for."""

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
    """The events are not as they should be."""


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
        """Be ready for categories that were seen."""
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
