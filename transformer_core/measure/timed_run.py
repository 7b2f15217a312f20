"""One repeat of a run spec: starts its processes, watches them, and records how they ended.

A run that this machine cannot do, that runs out of memory, diverges or fails with an exception
still has a result: its status. A run that is killed has none; the same command goes on from its
last checkpoint.
"""

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import safetensors.numpy

from schemas.config.run_spec import RunSpec
from schemas.results import Repeat
from transformer_core.common.digests import forget, record
from transformer_core.common.endings import count_failure, reproducing_command
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.measure.memory_fit import warn_before
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job import TrainingJob
from transformer_core.run.order import TrainingOrder, shard_manifests
from transformer_core.run.statuses import CHECKPOINTS, Outcome
from transformer_core.run.supervisor import attempt, lend_processes
from transformer_core.training.history import History


class TimedRunOrder(TrainingOrder):
    """Order to train from the first step to the last, and to time it."""

    work = "transformer_core.measure.timed_run_worker"

    repeat: int
    """Number of the repeat, from 1."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, repeat {self.repeat}"


def supervise(order: TimedRunOrder, made_from: Sequence[Path]) -> None:
    """Runs the workers, makes sure that metrics.json says how they ended, and records the results as
    ``made_from`` these files."""
    started = datetime.now(UTC)
    for name in ("steps.parquet", "model.safetensors", "metrics.json"):
        (order.output / name).unlink(missing_ok=True)
        forget(order.output / name)
    metrics = order.output / "metrics.json"
    outcome = attempt(order, metrics)
    if outcome is not None:
        _write_unfinished(order, outcome, started)
    record(order.output / "model.safetensors")
    record(metrics, made_from)
    if outcome is not None and outcome.again:
        count_failure(metrics)  # and the next attempt resumes from the last checkpoint
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


class TimedRun(TrainingJob):
    """Trains a variant once and times it; ``output`` is the folder of the results."""

    kind = "timed_run"

    repeat: int = 1
    """Number of the repeat, from 1."""
    predicted: Path | None = None
    """results/memory/predicted.json, to warn before a run that may not fit."""

    def run(self, log_file: Path | None) -> None:
        order = TimedRunOrder(
            spec=read_record(self.spec, RunSpec),
            data=self.data,
            output=self.output,
            command=reproducing_command(self.output / "metrics.json"),
            log_file=log_file,
            repeat=self.repeat,
        )
        lend_processes(order)
        if self.predicted is not None:
            warn_before(order.spec, self.predicted)
        with exclusive(order.output):
            supervise(order, [self.spec, *shard_manifests(self.data)])
