"""Collective operations by message size.

Broadcast, scatter, gather, reduce, all-gather, reduce-scatter, all-reduce, and this project's own
ring, between the processes of a distributed run, with the backend of the study's devices.
"""

from pathlib import Path

from schemas.config.parallel import Machine
from schemas.config.profiling import Limits
from schemas.results import CollectiveRun
from transformer_core.common.endings import count_failure, reproducing_command
from transformer_core.measure.limits.collectives.order import CollectivesOrder
from transformer_core.measure.limits.collectives.table import write_table
from transformer_core.run.folder_locks import workplace
from transformer_core.run.job import Job
from transformer_core.run.supervisor import attempt, lend_processes
from transformer_core.study.reservations import on_all_devices


def supervise(order: CollectivesOrder) -> None:
    """Run the workers and make sure that the table says how they ended."""
    outcome = attempt(order, order.table)
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


class Collectives(Job):
    """To measure collective operations by message size, between the processes that a distributed
    run has."""

    kind = "collectives"

    output: Path
    """For example results/machine/collectives.parquet."""
    machine: Machine = Machine()
    """The devices."""
    limits: Limits = Limits()
    """Sizes and time."""

    def run(self, log_file: Path | None) -> None:
        order = CollectivesOrder(
            spec=on_all_devices(self.machine, "collectives"),
            output=self.output.with_suffix(""),
            command=reproducing_command(self.output),
            log_file=log_file,
            limits=self.limits,
            table=self.output,
        )
        lend_processes(order)
        with workplace(order.output):
            supervise(order)
