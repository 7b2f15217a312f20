"""What a reader finds in one process: device events, launches, operators, ranges, collectives."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformer_core.profiling.columns import NULL, Columns, Names, or_null
from transformer_core.profiling.operators import UNKNOWN, Shape, Work, work_of


@dataclass
class ProcessTrace:
    """Everything of one process, added row by row in any order. Times are nanoseconds."""

    pid: int
    rank: int | None = None
    """Global rank, where the trace says it."""
    ranks: int | None = None
    """Processes of the training, likewise."""
    offset_ns: int = 0
    """What its times are counted from, after the epoch of the clock."""
    names: Names = field(default_factory=Names)
    device: Columns = field(
        default_factory=lambda: Columns(
            *("kind", "name", "device", "context", "stream", "t0", "t1", "correlation"),
            *("bytes", "copy", "group", "collective"),
        )
    )
    launches: Columns = field(default_factory=lambda: Columns("correlation", "thread", "t0"))
    operators: Columns = field(
        default_factory=lambda: Columns("thread", "t0", "t1", "name", "call")
    )
    ranges: Columns = field(default_factory=lambda: Columns("thread", "t0", "t1", "name"))
    collectives: Columns = field(
        default_factory=lambda: Columns("thread", "t0", "t1", "name", "bytes", "group", "whole")
    )
    work: list[Work] = field(default_factory=lambda: [UNKNOWN])
    """By call, a number that operators of one name and the same inputs share."""
    _calls: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add_device_event(
        self,
        kind: str,
        name: str,
        device: int,
        t0: int,
        t1: int,
        *,
        stream: int,
        context: int | None = None,
        correlation: int | None = None,
        size: int | None = None,
        copy_kind: str | None = None,
        group_size: int | None = None,
        collective: str | None = None,
    ) -> None:
        """A kernel, copy, memory set or CUDA graph; ``size`` in bytes.

        ``collective`` is what the trace itself says of a kernel beside its name.
        """
        ids = self.names.id
        self.device.add(
            ids(kind),
            ids(name),
            device,
            or_null(context),
            stream,
            t0,
            t1,
            or_null(correlation),
            or_null(size),
            NULL if copy_kind is None else ids(copy_kind),
            or_null(group_size),
            NULL if collective is None else ids(collective),
        )

    def add_launch(self, correlation: int, thread: int, t0: int) -> None:
        """A call of the CUDA runtime or driver."""
        self.launches.add(correlation, thread, t0)

    def add_operator(
        self,
        thread: int,
        t0: int,
        t1: int,
        name: str,
        shapes: Sequence[object] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        """An operator on the host, with the shapes and types of its inputs where known."""
        call = 0
        if shapes:
            key = (name, repr(shapes), repr(kinds))
            call = self._calls.get(key, -1)
            if call < 0:
                call = self._calls[key] = len(self.work)
                self.work.append(work_of(name, [_tensor(shape) for shape in shapes], kinds))
        self.operators.add(thread, t0, t1, self.names.id(name), call)

    def add_range(self, thread: int, t0: int, t1: int, name: str) -> None:
        """A range that a program set: a phase, or anything else."""
        self.ranges.add(thread, t0, t1, self.names.id(name))

    def add_collective(
        self,
        thread: int,
        t0: int,
        t1: int,
        name: str,
        size: int | None = None,
        group_size: int | None = None,
        whole: bool = False,
    ) -> None:
        """A range around a collective on the host: ``nccl:all_reduce``, ``gloo:broadcast``.

        ``size`` is that of its inputs, or if ``whole`` that of the message.
        """
        number = self.names.id(name)
        self.collectives.add(thread, t0, t1, number, or_null(size), or_null(group_size), int(whole))


def _tensor(shape: object) -> Shape | None:
    """The shape of an input that is a tensor; null for a number, a list of tensors, nothing."""
    if isinstance(shape, (list, tuple)) and all(isinstance(side, int) for side in shape):
        return shape
    return None
