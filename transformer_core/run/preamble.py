"""What every worker does before its own work: read its order, find its place and its corpus."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from transformer_core.common.progress import log_to
from transformer_core.parallel.communication.topology import Process, this_process
from transformer_core.parallel.devices.settling import settle
from transformer_core.run.order import Order
from transformer_core.run.statuses import supervised

Given = TypeVar("Given", bound=Order)


def carry_out(kind: type[Given], work: Callable[[Given], None]) -> None:
    """The life of a worker: ``work`` on the order whose file is its one argument. What ends it
    early is left beside that file."""
    parser = argparse.ArgumentParser(description="One process of a job, started by that job.")
    parser.add_argument("order", type=Path, help="JSON file that the job wrote")
    file: Path = parser.parse_args().order
    with supervised(file.parent):
        work(kind.read(file))


def take_place(order: Order) -> Process:
    """This process of the run, with the threads it is due; the main one writes log lines.

    Unsupported where there are GPUs that torch cannot use, or too few of them, or where it cannot
    have the cores or the allocator that the run spec says.
    """
    process = this_process(order.spec.machine, order.spec.processes_per_node)
    if process.is_main:
        log_to(order.log_file)
    settle(process.device, order.spec.machine, *process.among(order.spec.machine))
    return process
