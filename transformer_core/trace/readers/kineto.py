"""Reader of Kineto traces, the JSON files of torch.profiler, as a stream.

Of an event only a few numbers are kept, so that a trace of gigabytes fits. Timestamps are
microseconds with decimals, or whole ones in old traces; they become nanoseconds without rounding.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from transformer_core.common.progress import Progress
from transformer_core.trace.events.columns import NULL, Integers, or_null
from transformer_core.trace.events.layers import MODULE
from transformer_core.trace.events.process import (
    NotATrace,
    ProcessTrace,
    Source,
    group_named,
    group_of,
    groups_by_name,
    launches,
    unusable,
    usual_group,
    waits,
    without_kernels,
)
from transformer_core.trace.readers.kineto_events import (
    COLLECTIVE,
    DEVICE,
    LAUNCHES,
    MEMORY,
    MEMORY_CATEGORIES,
    OPERATORS,
    OTHER_RUNTIMES,
    UNREAD,
    AnyEvent,
    ArgsDecoder,
    Communication,
    DeviceArgs,
    LaunchArgs,
    MemoryArgs,
    OperatorArgs,
    Piece,
    TypedDecoder,
    Unusual,
    communication,
    copy_kind,
    decode_events,
    input_bytes,
    numbers,
    optional,
    said_bytes,
    starts,
    times,
    whole,
)
from transformer_core.trace.readers.kineto_stream import EventText

_NO_RANK = 2**31
_NO_TIME = 2**61
"""In nanoseconds; with the time of an event added it still fits into 64 bits."""


def read_kineto(path: Path) -> Source:
    """Reads the one process of a trace; TraceError if the file is damaged or not Kineto's."""
    return KinetoReader(path).read()


class KinetoReader:
    """Collects the events of a file by category, and hands them on in large batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trace = ProcessTrace(pid=0)
        self.left_out = self.trace.left_out
        self.launched = 0
        self._takers: dict[str, Any] = {"user_annotation": self._ranges}
        self._takers["python_function"] = self._modules
        self._takers |= dict.fromkeys((MEMORY, *MEMORY_CATEGORIES), self._memory)
        self._takers |= {name: partial(self._device_events, kind) for name, kind in DEVICE.items()}
        self._takers |= {name: partial(self._launches, name) for name in LAUNCHES}
        self._takers |= dict.fromkeys(OPERATORS, self._operators)
        self._takers |= {name: partial(self.left_out.unread, name) for name in UNREAD}
        self._typed = TypedDecoder()
        self._memory_args = ArgsDecoder(MemoryArgs)
        self._device_args = ArgsDecoder(DeviceArgs)
        self._launch_args = ArgsDecoder(LaunchArgs)
        self._operator_args = ArgsDecoder(OperatorArgs)

    def read(self) -> Source:
        """The whole file."""
        text = EventText(self.path, self._decode)
        with Progress(f"Read {self.path.name}", "events") as progress:
            for piece in text:
                self._take(piece)
                progress.update(len(piece))
        if not text.seen and not self.left_out.total:
            raise NotATrace(
                self.path,
                "is not a torch.profiler trace: it has no traceEvents",
                "give a file that export_chrome_trace or tensorboard_trace_handler wrote",
            )
        self._read_head(text.head)
        self.trace.settle()
        if self.launched and not len(self.trace.device):
            raise unusable(
                self.path,
                f"holds {self.launched:,} launches of kernels, but no kernel{self.left_out.told}",
                "record with ProfilerActivity.CUDA, where CUPTI may be used and no other profiler "
                "runs",
            )
        if self.left_out.accelerators and not len(self.trace.device):
            raise unusable(
                self.path,
                "comes from an accelerator whose events are not supported "
                f"({', '.join(sorted(self.left_out.accelerators))}): its CPU alone does not tell "
                "where the time goes",
                "give traces of GPUs, or of trainings on a CPU",
            )
        version = text.head.get("schemaVersion")
        version = None if version is None else str(version)
        notes = self.left_out.notes() + without_kernels([self.trace], self.launched)
        return Source("kineto", version, [self.trace], notes)

    def _read_head(self, head: dict[str, Any]) -> None:
        distributed = head.get("distributedInfo")
        if isinstance(distributed, dict):
            self.trace.ranks = whole(distributed.get("world_size"), 1, _NO_RANK)
            limit = self.trace.ranks or _NO_RANK
            self.trace.rank = whole(distributed.get("rank"), 0, limit)
            self.trace.usual_group = usual_group(distributed)
            # The texts of events leave out ranks of large groups; the head has them all.
            known = groups_by_name(distributed)
            texts = self.trace.names.texts
            texts[:] = [known.get(text, text) if text[:1] == "#" else text for text in texts]
        self.trace.offset_ns = whole(head.get("baseTimeNanoseconds"), 0, _NO_TIME) or 0

    def _decode(self, text: bytes | memoryview) -> Piece:
        """A stretch of events; msgspec.DecodeError if it is no JSON."""
        try:
            return self._typed.decode(text)
        except Unusual:
            events = decode_events(bytes(text), self.left_out)
            self._typed.learn({event.cat for event in events})
            return Piece(len(events), list(self._by_category(events).items()))

    def _by_category(self, events: Sequence[AnyEvent]) -> dict[str, list[AnyEvent]]:
        found: dict[str, list[AnyEvent]] = {}
        for event in events:
            if event.ph == "X":
                found.setdefault(event.cat, []).append(event)
            elif event.ph in ("B", "E"):
                self.left_out.add("they are begins and ends apart, no whole events")
            elif event.ph == "i" and event.name == MEMORY:
                found.setdefault(MEMORY, []).append(event)
        return found

    def _take(self, piece: Piece) -> None:
        for category, events in piece.runs:
            taker = self._takers.get(category) or self._takers.get(category.lower())
            if taker:
                taker(events)

    def _timed(
        self, events: Sequence[AnyEvent], decoder: ArgsDecoder
    ) -> tuple[Sequence[AnyEvent], list[Any], Integers, Integers]:
        """The complete events: with their args, begins and ends."""
        events, args = decoder(events, self.left_out)
        kept, t0, t1 = times(events, self.left_out)
        if len(kept) < len(events):
            chosen = set(map(id, kept))
            args = [a for event, a in zip(events, args, strict=True) if id(event) in chosen]
        return kept, args, t0, t1

    def _device_events(self, kind: str, events: Sequence[AnyEvent]) -> None:
        ids = self.trace.names
        events, args, t0, t1 = self._timed(events, self._device_args)
        # Old traces name device and stream by process and thread.
        device = [
            e.pid if a.device is None else a.device for e, a in zip(events, args, strict=True)
        ]
        stream = [
            e.tid if a.stream is None else a.stream for e, a in zip(events, args, strict=True)
        ]
        said = [a if a.collective else None for a in args]
        sizes = [a.bytes if s is None else said_bytes(s) for a, s in zip(args, said, strict=True)]
        names = [event.name for event in events]
        copies = [copy_kind(name) if kind == "memcpy" else None for name in names]
        self.trace.device.extend(
            len(events),
            kind=ids[kind],
            name=ids.of(names),
            device=numbers(device),
            context=optional([a.context for a in args]),
            stream=numbers(stream),
            t0=t0,
            t1=t1,
            correlation=optional([a.correlation for a in args]),
            bytes=optional(sizes),
            copy=optional([None if copy is None else ids[copy] for copy in copies]),
            group_size=optional([None if s is None else s.group_size for s in said]),
            group=optional([self._group(s) for s in said]),
            collective=optional([None if s is None else ids[str(s.collective)] for s in said]),
            graph=optional([a.graph for a in args]),
        )

    def _launches(self, category: str, events: Sequence[AnyEvent]) -> None:
        self.trace.accelerator = OTHER_RUNTIMES.get(category, self.trace.accelerator)
        events, args = self._launch_args(events, self.left_out)
        self.launched += sum(launches(event.name) for event in events)
        correlation = optional([a.correlation for a in args])
        t0, kept = starts(events)
        kept &= correlation != NULL
        self._set_process(events)
        thread = numbers([event.tid for event in events])
        self.trace.launches.extend(
            int(kept.sum()), correlation=correlation[kept], thread=thread[kept], t0=t0[kept]
        )
        if waiting := [event for event in events if waits(event.name)]:
            ended, t0, t1 = times(waiting, self.left_out)
            thread = numbers([event.tid for event in ended])
            self.trace.waits.extend(len(ended), thread=thread, t0=t0, t1=t1)

    def _operators(self, events: Sequence[AnyEvent]) -> None:
        special = [event for event in events if event.name == "record_param_comms"]
        if special:
            self._collectives(special)
            events = [event for event in events if event.name != "record_param_comms"]
        events, args, t0, t1 = self._timed(events, self._operator_args)
        self._set_process(events)
        names = [event.name for event in events]
        dims = [bytes(a.dims or a.old_dims) for a in args]
        calls = self.trace.calls(names, dims, [bytes(a.types) for a in args])
        self.trace.operators.extend(
            len(events),
            thread=numbers([event.tid for event in events]),
            t0=t0,
            t1=t1,
            name=self.trace.names.of(names),
            call=calls,
            sequence=optional([a.sequence for a in args]),
        )

    def _ranges(self, events: Sequence[AnyEvent]) -> None:
        talks = [event for event in events if COLLECTIVE.fullmatch(event.name)]
        if talks:
            self._collectives(talks)
            events = [event for event in events if not COLLECTIVE.fullmatch(event.name)]
        events, t0, t1 = times(events, self.left_out)
        self.trace.ranges.extend(
            len(events),
            thread=numbers([event.tid for event in events]),
            t0=t0,
            t1=t1,
            name=self.trace.names.of(event.name for event in events),
        )

    def _modules(self, events: Sequence[AnyEvent]) -> None:
        """The modules among the functions of Python."""
        if found := [event for event in events if event.name.startswith(MODULE)]:
            self._ranges(found)

    def _collectives(self, events: Sequence[AnyEvent]) -> None:
        """Takes ranges around collectives, or PyTorch's description of one."""
        events, t0, t1 = times(events, self.left_out)
        self._set_process(events)
        for event, begin, end in zip(events, t0.tolist(), t1.tolist(), strict=True):
            name, size, group, members = event.name, None, None, None
            said = event.name == "record_param_comms"
            if said:
                args = communication(event.args)
                if args is None or not args.collective:
                    continue
                name, size = f"nccl:{args.collective}", said_bytes(args)
                group, members = args.group_size, self._group(args)
            else:
                size = input_bytes(event.args)
            self.trace.collectives.add(
                int(numbers([event.tid])[0]),
                begin,
                end,
                self.trace.names[name],
                or_null(size),
                or_null(group),
                or_null(members),
                int(said),
            )

    def _memory(self, events: Sequence[AnyEvent]) -> None:
        events, args = self._memory_args(events, self.left_out)
        t0, kept = starts(events)
        kept &= np.array([event.name == MEMORY for event in events], np.bool_)
        kept &= np.array([a.allocated is not None for a in args], np.bool_)
        self.trace.memory.extend(
            int(kept.sum()),
            t0=t0[kept],
            device=optional([a.device if a.kind else -1 for a in args])[kept],
            allocated=optional([a.allocated for a in args])[kept],
        )

    def _group(self, said: Communication | None) -> int | None:
        found = None if said is None else group_of(said.group_ranks)
        if found is None and said is not None and said.group_name:
            found = group_named(said.group_name)
        return None if found is None else self.trace.names[found]

    def _set_process(self, events: Sequence[AnyEvent]) -> None:
        if events:
            self.trace.pid = int(numbers([events[-1].pid])[0])
