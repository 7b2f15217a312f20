"""One repeat of a run spec: start its processes, watch them, and record how they ended.

A run that this machine cannot do, that runs out of memory, diverges or fails with an exception
still has a result: its status. A run that is killed has none; the same command goes on from its
last checkpoint.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import safetensors.numpy

from schemas.config.run_spec import RunSpec
from schemas.results import Repeat
from transformer_core.common.attempts import count_failure
from transformer_core.common.endings import program
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import seal, seal_file
from transformer_core.machine.provenance import collect
from transformer_core.measure.alone.order import TimedRunOrder
from transformer_core.measure.memory.predicted.fit_warning import warn_before
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job_options import job_parser
from transformer_core.run.order import shard_manifests
from transformer_core.run.statuses import CHECKPOINTS, Outcome
from transformer_core.run.supervisor import attempt, lend_processes
from transformer_core.training.history import History

WORKER = "transformer_core.measure.alone.worker"


def supervise(order: TimedRunOrder, made_from: Sequence[Path]) -> None:
    """Run the workers, make sure that metrics.json says how they ended, and seal what is there as
    ``made_from`` these files."""
    started = datetime.now(UTC)
    for name in ("steps.parquet", "model.safetensors", "metrics.json"):
        (order.output / name).unlink(missing_ok=True)
        seal_file(order.output / name).unlink(missing_ok=True)
    metrics = order.output / "metrics.json"
    outcome = attempt(order, WORKER, metrics)
    if outcome is not None:
        _write_unfinished(order, outcome, started)
    seal(order.output / "model.safetensors")
    seal(metrics, made_from)
    if outcome is not None and outcome.again:
        count_failure(metrics)  # and the next attempt goes on from the last checkpoint
    else:
        shutil.rmtree(order.output / CHECKPOINTS, ignore_errors=True)


def _write_unfinished(order: TimedRunOrder, outcome: Outcome, started: datetime) -> None:
    """The three result files of a run that is not ok: a status, no steps, no weights."""
    with atomic_path(order.output / "model.safetensors") as temporary:
        safetensors.numpy.save_file({}, temporary, {"status": outcome.status})
    History().write(order.output / "steps.parquet")
    repeat = Repeat(
        variant=order.spec.variant,
        repeat=order.repeat,
        **outcome.of_a_result,
        topology=None,
        parameters=None,
        steps=0,
        resumed_at=[],
        startup_seconds=None,
        warmup_seconds=None,
        total_seconds=time.time() - started.timestamp(),
        windows=[],
        validations=[],
        memory=[],
        communication=None,
        provenance=collect(order.spec, order.command, started),
    )
    write_text(order.output / "metrics.json", repeat.model_dump_json(indent=2) + "\n")


@program
def main() -> None:
    parser = job_parser(
        "transformer_core.measure.alone.job",
        "Train a variant once, and time it.",
        "folder of the results",
    )
    parser.add_argument("--repeat", type=int, default=1, help="number of the repeat, from 1")
    parser.add_argument("--predicted", type=Path, help="results/memory/predicted.json")
    given = parser.parse_args()
    log_to(given.log_file)
    order = TimedRunOrder(
        spec=read_record(given.spec, RunSpec),
        data=given.data,
        output=given.output,
        command=reproducing_command(given.output / "metrics.json"),
        log_file=given.log_file,
        repeat=given.repeat,
    )
    lend_processes(order, WORKER)
    if given.predicted is not None:
        warn_before(order.spec, given.predicted)
    with exclusive(order.output):
        supervise(order, [given.spec, *shard_manifests(given.data)])


if __name__ == "__main__":
    sys.exit(main())
