"""Collective operations by message size:
``python -m transformer_core.measure.limits.collectives.job``.

Broadcast, scatter, gather, reduce, all-gather, reduce-scatter, all-reduce, and this project's own
ring, between the processes of a distributed run, with the backend of the study's devices.
"""

import argparse
import sys
from pathlib import Path

from schemas.config.parallel import Machine
from schemas.config.profiling import Limits
from schemas.results import CollectiveRun
from transformer_core.common.attempts import count_failure
from transformer_core.common.endings import program
from transformer_core.common.progress import log_to
from transformer_core.common.reproducing import reproducing_command
from transformer_core.measure.limits.collectives.order import CollectivesOrder
from transformer_core.measure.limits.collectives.table import write_table
from transformer_core.run.folder_locks import workplace
from transformer_core.run.job_options import add_log_file
from transformer_core.run.supervisor import attempt, lend_processes
from transformer_core.study.reservations import on_all_devices

WORKER = "transformer_core.measure.limits.collectives.worker"


def supervise(order: CollectivesOrder) -> None:
    """Run the workers and make sure that the table says how they ended."""
    outcome = attempt(order, WORKER, order.table)
    if outcome is None:
        return
    if outcome.again:
        count_failure(order.table)
    run = CollectiveRun(
        status=outcome.status,
        reason=outcome.reason,
        backend=None,
        world_size=order.spec.world_size,
        nodes=order.spec.machine.nodes,
        device=None,
        command=order.command,
    )
    write_table(order.table, [], run)


@program
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.measure.limits.collectives.job",
        description="Measure collective operations by message size, between the processes that a "
        "distributed run has.",
    )
    parser.add_argument(
        "--machine",
        default=Machine().canonical_json(),
        help="the devices, as JSON (default: %(default)s)",
    )
    parser.add_argument(
        "--limits",
        default=Limits().canonical_json(),
        help="sizes and time, as JSON (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="for example results/machine/collectives.parquet"
    )
    add_log_file(parser)
    given = parser.parse_args()
    log_to(given.log_file)
    output: Path = given.output
    order = CollectivesOrder(
        spec=on_all_devices(Machine.model_validate_json(given.machine), "collectives"),
        output=output.with_suffix(""),
        command=reproducing_command(output),
        log_file=given.log_file,
        limits=Limits.model_validate_json(given.limits),
        table=output,
    )
    lend_processes(order, WORKER)
    with workplace(order.output):
        supervise(order)


if __name__ == "__main__":
    sys.exit(main())
