"""Collective operations by message size: ``python -m transformer_core.measure.collectives``.

Broadcast, scatter, gather, reduce, all-gather, reduce-scatter, all-reduce, and this project's own
ring, between the processes of a distributed run, with the backend of the study's devices.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.jobs import on_all_devices
from schemas.parallel import Machine
from schemas.profile import Limits
from schemas.results import COLLECTIVE_COLUMNS, CollectiveRun
from schemas.study import RunSpec
from transformer_core.data.files import atomic_path
from transformer_core.measure.launch import lends_processes_only
from transformer_core.measure.outcome import clear_outcomes
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.run import attempt, reproducing_command, run_workers, worker_options

WORKER = "transformer_core.measure.collectives_worker"


def joined(machine: Machine) -> RunSpec:
    """The run spec of the processes between which the operations are measured."""
    return on_all_devices(machine, "collectives")


def write_table(path: Path, rows: Sequence[tuple[object, ...]], run: CollectiveRun) -> None:
    """collectives.parquet, whole or not at all."""
    kinds = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
    types = [kinds[text.split(":")[0]] for text in COLLECTIVE_COLUMNS.values()]
    fields = list(zip(COLLECTIVE_COLUMNS, types, strict=True))
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    table = pa.Table.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
        schema=pa.schema(fields, metadata={"study": run.model_dump_json()}),
    )
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def supervise(arguments: argparse.Namespace, machine: Machine) -> None:
    """Run the workers and make sure that the table says how they ended."""
    output: Path = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    clear_outcomes(output.parent)
    outcome = attempt(joined(machine), WORKER, worker_options(arguments), output)
    if outcome is None:
        return
    log.info("collectives: %s, %s", outcome["status"], outcome["reason"])
    run = CollectiveRun(
        status=outcome["status"],
        reason=outcome["reason"],
        backend=None,
        world_size=joined(machine).world_size,
        nodes=machine.nodes,
        device=None,
        command=arguments.command,
    )
    write_table(output, [], run)
    clear_outcomes(output.parent)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.measure.collectives",
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
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    arguments.command = reproducing_command(arguments.output)
    log_to(arguments.log_file)
    machine = Machine.model_validate_json(arguments.machine)
    if lends_processes_only():
        # The first host writes the results.
        sys.exit(run_workers(joined(machine), WORKER, worker_options(arguments)))
    supervise(arguments, machine)


if __name__ == "__main__":
    main()
