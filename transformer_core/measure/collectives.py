"""Collective operations by message size.

Times broadcast, scatter, gather, reduce, all-gather, reduce-scatter, all-reduce, and this project's
own ring, between the processes of a distributed run, with the backend of the study's devices.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from schemas.config.measurement import Limits
from schemas.config.parallel import Machine
from schemas.results import COLLECTIVE_COLUMNS, CollectiveRun
from transformer_core.common import tables
from transformer_core.common.endings import reproducing_command
from transformer_core.common.folder_locks import workplace
from transformer_core.run.job import Job
from transformer_core.run.order import Order
from transformer_core.run.supervisor import attempt, lend_processes
from transformer_core.study.reservations import on_all_devices


class CollectivesOrder(Order):
    """Order to time collective operations between the processes of a run."""

    work = "transformer_core.measure.collectives_worker"

    limits: Limits  # sizes and time
    table: Path  # file of the result

    @property
    def title(self) -> str:
        return "collectives"


class Collectives(Job):
    """Measures collective operations by message size, between the processes of a distributed
    run."""

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
            outcome = attempt(order, order.table, order.table)
            if outcome is not None:  # the table says how the workers ended
                size, nodes = order.spec.world_size, order.spec.machine.nodes
                known = {"world_size": size, "nodes": nodes, "command": order.command}
                write_table(order.table, [], outcome.result(CollectiveRun, **known))


def write_table(path: Path, rows: Sequence[tuple[object, ...]], run: CollectiveRun) -> None:
    kinds = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
    fields = [(name, kinds[text.split(":")[0]]) for name, text in COLLECTIVE_COLUMNS.items()]
    schema = pa.schema(fields, metadata={"study": run.model_dump_json()})
    named = [dict(zip(COLLECTIVE_COLUMNS, row, strict=True)) for row in rows]
    tables.write_table(path, tables.table_of(named, schema))
