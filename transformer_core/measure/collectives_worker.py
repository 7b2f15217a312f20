"""One of the processes that time collective operations.

Started by :mod:`transformer_core.measure.collectives`, not by hand.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from schemas.config.measurement import Limits
from schemas.errors import Unsupported
from schemas.results import CollectiveRun
from transformer_core.common.progress import log
from transformer_core.machine.hardware import cpu_name
from transformer_core.measure.collectives import CollectivesOrder, write_table
from transformer_core.parallel.hooks import ring_all_reduce
from transformer_core.parallel.strategy import ProcessGroupStrategy
from transformer_core.run.worker import Program

READINGS = 3  # timings for each size; the best counts
_MOST_CALLS = 200


@dataclass(frozen=True)
class Exchange:
    """One collective operation on buffers of one size."""

    run: Callable[[], object]
    """Runs the operation. A second call repeats it on the result of the first."""
    result: Tensor | None  # None on a rank that receives no result
    expected: float  # the value of every element of the result after the first call
    buffers: list[Tensor]  # all buffers that the operation reads and writes


def exchange(name: str, count: int, rank: int, ranks: int, device: torch.device) -> Exchange:
    """The collective ``name`` of a rank, with ``count`` elements in the largest buffer."""

    def filled(value: float, size: int = count) -> Tensor:
        return torch.full((size,), value, device=device)

    share, first = count // ranks, rank == 0
    all_of_them = ranks * (ranks + 1) / 2
    values, own, whole = filled(rank + 1.0), filled(7.0, share), filled(0.0)
    match name:
        case "broadcast":
            return Exchange(lambda: dist.broadcast(values, src=0), values, 1.0, [values])
        case "scatter":
            # Part r of equal parts holds r + 1.
            whole = torch.arange(1.0, ranks + 1, device=device).repeat_interleave(share)
            given = [*whole.chunk(ranks)] if first else None
            return Exchange(lambda: dist.scatter(own, given, 0), own, rank + 1.0, [own, whole])
        case "gather":
            taken = [*whole.chunk(ranks)] if first else None
            result = whole if first else None
            return Exchange(lambda: dist.gather(own, taken, 0), result, 7.0, [own, whole])
        case "reduce":
            result = values if first else None
            return Exchange(lambda: dist.reduce(values, dst=0), result, all_of_them, [values])
        case "all_gather":
            gather = dist.all_gather_into_tensor
            return Exchange(lambda: gather(whole, own), whole, 7.0, [own, whole])
        case "reduce_scatter":
            scatter = dist.reduce_scatter_tensor
            return Exchange(lambda: scatter(own, values), own, all_of_them, [own, values])
        case "all_reduce":
            return Exchange(lambda: dist.all_reduce(values), values, all_of_them, [values])
        case _:
            group = dist.group.WORLD
            assert group is not None
            ring = partial(ring_all_reduce, values, group)
            return Exchange(ring, values, all_of_them, [values])


COLLECTIVES = (
    *("broadcast", "scatter", "gather", "reduce"),
    *("all_gather", "reduce_scatter", "all_reduce", "ring_all_reduce"),
)
"""The collective operations; the last one is this project's own."""


def bus_factor(collective: str, ranks: int) -> float:
    """The ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests."""
    if collective in ("broadcast", "reduce"):
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if collective.endswith("all_reduce") else share


def sizes(limits: Limits, ranks: int) -> Iterator[int]:
    """Numbers of 32-bit elements in the largest buffer, multiples of ``ranks``."""
    size = limits.smallest_message
    while size <= limits.largest_message:
        yield max(1, size // 4 // ranks) * ranks
        size *= 4


def measure(strategy: ProcessGroupStrategy, limits: Limits) -> list[tuple[object, ...]]:
    """A row of :data:`schemas.results.COLLECTIVE_COLUMNS` per operation and size, on every rank."""
    process = strategy.process
    rows: list[tuple[object, ...]] = []
    for name in COLLECTIVES:
        for count in sizes(limits, process.world_size):
            made = exchange(name, count, process.rank, process.world_size, process.device)
            made.run()
            wrong = made.result - made.expected if made.result is not None else torch.zeros(1)
            error = float(wrong.abs().nan_to_num(nan=torch.inf).max())  # comparisons lose a NaN
            for buffer in made.buffers:
                buffer.zero_()  # sums of sums would overflow
            once = min(_seconds(made, strategy, 1) for _ in range(2))
            calls = max(1, min(_MOST_CALLS, round(limits.seconds / READINGS / once)))
            seconds = min(_seconds(made, strategy, calls) for _ in range(READINGS))
            worst = max(value for (value,) in strategy.gather([error]))
            bandwidth = 4 * count / seconds
            bus = bandwidth * bus_factor(name, process.world_size)
            rows.append((name, 4 * count, calls, seconds, bandwidth, bus, worst))
        if process.is_main:
            log.info("%s: %.2f GB/s of %d bytes", name, bandwidth / 1e9, 4 * count)
    return rows


def _seconds(exchange: Exchange, strategy: ProcessGroupStrategy, calls: int) -> float:
    """Seconds of a call on the slowest rank, the same number on all ranks."""
    strategy.synchronise()
    began = time.perf_counter()
    for _ in range(calls):
        exchange.run()
    if strategy.device.type == "cuda":
        torch.cuda.synchronize(strategy.device)
    mine = (time.perf_counter() - began) / calls
    return max(seconds for (seconds,) in strategy.gather([mine]))


def work(order: CollectivesOrder, program: Program) -> None:
    if order.spec.world_size < 2:
        raise Unsupported("A single process does not communicate: the study asks for one device.")
    # Newer torch renamed two of them; older versions have only these names.
    warnings.filterwarnings("ignore", ".*is deprecated", FutureWarning)
    process = program.process
    strategy = ProcessGroupStrategy(process, order.spec.machine)
    rows = measure(strategy, order.limits)
    if process.is_main:
        cuda = process.device.type == "cuda"
        record = CollectiveRun(
            status="ok",
            reason=None,
            backend=strategy.backend,
            world_size=process.world_size,
            nodes=process.nodes,
            device=torch.cuda.get_device_name(process.device) if cuda else cpu_name(),
            command=order.command,
        )
        write_table(order.table, rows, record)
    strategy.synchronise()
    strategy.close()
