"""Reader of Kineto traces, the JSON files of torch.profiler, as a stream.

Of an event only a few numbers are kept, so that a trace of gigabytes fits. Timestamps are
microseconds with decimals, or whole ones in old traces; they become nanoseconds without rounding.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import ijson

from transformer_core.data.files import open_decompressed
from transformer_core.data.progress import Progress
from transformer_core.profiling.collectives import collective_named, message_bytes
from transformer_core.profiling.operators import element_bytes
from transformer_core.profiling.source import Source, unusable
from transformer_core.profiling.trace import ProcessTrace

_CHUNK = 1 << 20
_DEVICE = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
"""Kinds of device events by category in lower case; the names without gpu_ are the old ones."""
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "runtime"})
_OPERATORS = frozenset({"cpu_op", "operator"})
_COLLECTIVE = re.compile(r"(nccl|gloo|ucc|mpi):.*")
_COPY = re.compile(r"Memcpy (\w)to(\w)\b", re.IGNORECASE)
_HEAD = ("schemaVersion", "baseTimeNanoseconds", "distributedInfo")
"""What is read of a trace beside its events: never the environment that some hold."""
_DAMAGE = (ijson.JSONError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError)


def read_kineto(path: Path) -> Source:
    """The one process of a trace; ConfigError if the file is damaged or none of Kineto's."""
    trace = ProcessTrace(pid=0)
    head: dict[str, Any] = {}
    seen = 0
    try:
        with open_decompressed(path) as stream, Progress(f"Read {path.name}", "events") as progress:
            for event in _events(stream, head):
                _add(trace, event)
                progress.update(1)
                seen += 1
    except _DAMAGE as error:
        reason = str(error).strip().partition("\n")[0]
        raise unusable(
            path,
            f"is damaged or cut off after {seen:,} events ({reason})",
            "record it again, and let the program end before the file is copied",
        ) from None
    except OSError as error:
        raise unusable(
            path, f"cannot be read: {error.strerror or error}", "check its path and permissions"
        ) from None
    if not seen:
        raise unusable(
            path,
            "is no trace of torch.profiler: it has no traceEvents",
            "give a file that export_chrome_trace or tensorboard_trace_handler wrote",
        )
    distributed = head.get("distributedInfo", {})
    trace.rank, trace.ranks = distributed.get("rank"), distributed.get("world_size")
    trace.offset_ns = int(head.get("baseTimeNanoseconds", 0))
    version = head.get("schemaVersion")
    return Source("kineto", None if version is None else str(version), [trace])


def _events(stream: BinaryIO, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The trace's events as they come; ``head`` takes up what stands before or after them."""
    events = ijson.sendable_list()
    parser = ijson.items_coro(events, "traceEvents.item")
    heads = {name: ijson.sendable_list() for name in _HEAD}
    waiting = {name: ijson.items_coro(found, name) for name, found in heads.items()}
    while chunk := stream.read(_CHUNK):
        parser.send(chunk)
        yield from events
        events.clear()
        for name in list(waiting):
            waiting[name].send(chunk)
            if heads[name]:
                del waiting[name]
    parser.close()  # raises if the text is incomplete
    head.update({name: found[0] for name, found in heads.items() if found})


def _add(trace: ProcessTrace, event: dict[str, Any]) -> None:
    """Take up an event that matters; the others (Python stacks, flow arrows) are left out."""
    category = event.get("cat", "")
    if event.get("ph") != "X" or not category:
        return
    category = category.lower()
    args = event.get("args", {})
    if kind := _DEVICE.get(category):
        _add_device_event(trace, kind, event, args)
        return
    t0, t1 = _times(event)
    if category in _LAUNCHES:
        trace.pid = _number(event["pid"])
        if (correlation := args.get("correlation")) is not None:
            trace.add_launch(correlation, _number(event["tid"]), t0)
    elif category in _OPERATORS:
        trace.pid = _number(event["pid"])
        _add_operator(trace, _number(event["tid"]), t0, t1, event["name"], args)
    elif category == "user_annotation":
        thread, name = _number(event["tid"]), event["name"]
        if _COLLECTIVE.fullmatch(name):
            trace.add_collective(thread, t0, t1, name, _input_bytes(args))
        else:
            trace.add_range(thread, t0, t1, name)


def _add_device_event(
    trace: ProcessTrace, kind: str, event: dict[str, Any], args: dict[str, Any]
) -> None:
    t0, t1 = _times(event)
    copy = _COPY.match(event["name"]) if kind == "memcpy" else None
    said = args.get("Collective name")
    trace.add_device_event(
        kind,
        event["name"],
        _number(args.get("device", event["pid"])),
        t0,
        t1,
        stream=_number(args.get("stream", event["tid"])),
        context=args.get("context"),
        correlation=args.get("correlation"),
        size=_said_bytes(args) if said else args.get("bytes"),
        copy_kind=f"{copy[1]}2{copy[2]}".lower() if copy else None,
        group_size=args.get("Group size"),
        collective=said,
    )


def _add_operator(
    trace: ProcessTrace, thread: int, t0: int, t1: int, name: str, args: dict[str, Any]
) -> None:
    if name == "record_param_comms":
        if said := args.get("Collective name"):
            size, group = _said_bytes(args), args.get("Group size")
            trace.add_collective(thread, t0, t1, f"nccl:{said}", size, group, whole=True)
        return
    shapes = args.get("Input Dims", args.get("Input dims", ()))
    trace.add_operator(thread, t0, t1, name, shapes, args.get("Input type", ()))


def _said_bytes(args: dict[str, Any]) -> int | None:
    """Size of the message of an event that tells its collective."""
    width = element_bytes(str(args.get("dtype", "")))
    if width is None or "In msg nelems" not in args:
        return None
    return message_bytes(
        collective_named(args["Collective name"]),
        args["In msg nelems"] * width,
        args.get("Out msg nelems", 0) * width,
        args.get("Group size"),
    )


def _input_bytes(args: dict[str, Any]) -> int | None:
    """Bytes of the inputs of a range around a collective."""
    total = 0
    for shape, kind in zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False):
        width = element_bytes(kind)
        if not shape or width is None or not all(isinstance(side, int) for side in shape):
            continue
        size = width
        for side in shape:
            size *= side
        total += size
    return total or None


def _times(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end in nanoseconds."""
    t0 = int(_decimal(event["ts"]) * 1000)
    return t0, t0 + int(_decimal(event.get("dur", 0)) * 1000)


def _decimal(value: Any) -> Any:
    return Decimal(value) if isinstance(value, str) else value


def _number(value: Any) -> int:
    """A process, thread, device or stream: old traces write ``stream 7``."""
    if isinstance(value, int):
        return value
    digits = re.search(r"-?\d+", str(value))
    return int(digits[0]) if digits else 0
