"""One process of any job: ``python -m transformer_core.run.worker ORDER``.

A job writes its order, and starts one worker for each process of the run. Each worker reads the
order and does the work it names: it assembles the program, attaches observers, runs it, and writes
their findings. If an error ends it early, it leaves a status next to the order.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from schemas.config.run_spec import RunSpec
from transformer_core.common.progress import log_to
from transformer_core.data.sharding.shard_store import PairStore, open_training_shards
from transformer_core.parallel.settling import settle
from transformer_core.parallel.topology import Process, this_process
from transformer_core.run.order import Order, TrainingOrder
from transformer_core.run.statuses import supervised
from transformer_core.training.assemble import Setup, assemble, unwatched


def take_place(order: Order) -> Process:
    """Sets up this process of the run, with its share of threads; the main one writes log lines.

    Raises Unsupported if torch cannot use the GPUs, if there are too few of them, or if the cores or
    the allocator of the run spec are not available.
    """
    process = this_process(order.spec.machine, order.spec.processes_per_node)
    if process.is_main:
        log_to(order.log_file)
    settle(process.device, order.spec.machine, *process.among(order.spec.machine))
    return process


class Program:
    """The project's own training of an order's run spec, in this process. Nothing uses a device
    before the first access to :attr:`process`."""

    def __init__(self, order: Order, began: float) -> None:
        self.order = order
        self.began = began  # when this process began its work, in seconds since the epoch

    @cached_property
    def process(self) -> Process:
        return take_place(self.order)

    @cached_property
    def stores(self) -> tuple[PairStore, PairStore]:
        assert isinstance(self.order, TrainingOrder)
        return open_training_shards(self.order.data)

    def assemble(
        self,
        spec: RunSpec | None = None,
        process: Process | None = None,
        watch: Callable[[str], None] = unwatched,
    ) -> Setup:
        """The training, with another ``spec`` or as another ``process`` if given."""
        spec, process = spec or self.order.spec, process or self.process
        return assemble(spec, process, self.stores[0].manifest.vocabulary, *self.stores, watch)


def prepare(options: Sequence[str]) -> None:
    """Imports the order's modules once, before the ranks are forked."""
    _ = Order.read(Path(options[0])).module


def main() -> None:
    began = time.time()
    file = Path(sys.argv[1])
    with supervised(file.parent):
        order = Order.read(file)
        order.module.work(order, Program(order, began))


if __name__ == "__main__":
    main()
