"""One process of any job: ``python -m transformer_core.run.worker ORDER``.

A job writes its order, and starts as many of these as the run has processes. Each reads the order,
and does the work that the order names: it assembles the program, attaches observers, runs it, and
writes what they found. An error that ends it early is left beside the order, as a status.
"""

import argparse
import importlib
import time
from collections.abc import Sequence
from pathlib import Path

from transformer_core.run.order import Order
from transformer_core.run.program import Program
from transformer_core.run.statuses import supervised


def prepare(options: Sequence[str]) -> None:
    """Imports the modules of the order once, before a process is forked for each rank."""
    importlib.import_module(Order.read(Path(options[0])).work)


def main() -> None:
    began = time.time()
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.run.worker",
        description="One process of a job, started by that job.",
    )
    parser.add_argument("order", type=Path, help="JSON file that the job wrote")
    file: Path = parser.parse_args().order
    with supervised(file.parent):
        order = Order.read(file)
        importlib.import_module(order.work).work(order, Program(order, began))


if __name__ == "__main__":
    main()
