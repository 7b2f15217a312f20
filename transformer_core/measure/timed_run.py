"""One repeat of a run spec: starts its processes, watches them, and records how they ended.

A run still has a result, its status, if it is impossible on this machine, runs out of memory,
diverges or fails with an exception. A killed run has none; the same command resumes from its last
checkpoint.
"""

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import safetensors.numpy
from pydantic import TypeAdapter

from schemas.results import RankMemory, Repeat, Window
from transformer_core.common.digests import forget, record
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.folder_locks import exclusive
from transformer_core.common.progress import RunProgress
from transformer_core.machine.provenance import collect
from transformer_core.measure.memory_fit import warn_before
from transformer_core.run.order import TrainingJob, TrainingOrder, shard_manifests
from transformer_core.run.statuses import CHECKPOINTS, Outcome
from transformer_core.run.supervisor import attempt, lend_processes
from transformer_core.training.history import History
from transformer_core.training.observer import Observer, Observers, Progress

if TYPE_CHECKING:
    from transformer_core.parallel.strategy import Strategy
    from transformer_core.run.worker import Program
    from transformer_core.training.assemble import Setup


class TimedRunOrder(TrainingOrder):
    """Order to train from the first step to the last and time it."""

    repeat: int
    """Number of the repeat, from 1."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, repeat {self.repeat}"


def supervise(order: TimedRunOrder, made_from: Sequence[Path]) -> None:
    """Runs the workers, ensures that metrics.json says how they ended, and records the results as
    ``made_from`` these files."""
    started = datetime.now(UTC)
    for name in ("steps.parquet", "model.safetensors", "metrics.json"):
        (order.output / name).unlink(missing_ok=True)
        forget(order.output / name)
    metrics = order.output / "metrics.json"
    outcome = attempt(order, metrics, metrics)
    if outcome is not None:
        _write_unfinished(order, outcome, started)
    record(order.output / "model.safetensors")
    record(metrics, made_from)
    if outcome is None or not outcome.again:  # otherwise the next attempt resumes from them
        shutil.rmtree(order.output / CHECKPOINTS, ignore_errors=True)


def _write_unfinished(order: TimedRunOrder, outcome: Outcome, started: datetime) -> None:
    """Writes the three result files of an unsuccessful run: a status, no steps, no weights."""
    with atomic_path(order.output / "model.safetensors") as temporary:
        safetensors.numpy.save_file({}, temporary, {"status": outcome.status})
    History().write(order.output / "steps.parquet")
    repeat = outcome.result(
        Repeat,
        variant=order.spec.variant,
        repeat=order.repeat,
        steps=0,
        total_seconds=time.time() - started.timestamp(),
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
        target, more = self.output / "metrics.json", {"output": self.output, "repeat": self.repeat}
        order = self.order(TimedRunOrder, log_file, target, **more)
        lend_processes(order)
        if self.predicted is not None:
            warn_before(order.spec, self.predicted)
        with exclusive(order.output):
            supervise(order, [self.spec, *shard_manifests(self.data)])


def work(order: TimedRunOrder, program: "Program") -> None:
    """Trains in each process of the run; the main rank writes model, steps and metrics, in this
    order."""
    # Imported here: the waiting job does not need torch.
    from safetensors.torch import save_file

    from transformer_core.machine.peak_memory import reset_peak
    from transformer_core.machine.step_kernels import FirstKernels, FirstStep
    from transformer_core.models.compiled_layers import compile_seconds, replayed_share
    from transformer_core.observe.clock import WindowClock
    from transformer_core.observe.spot_checks import SpotChecks
    from transformer_core.parallel.sharded_weights import whole_weights
    from transformer_core.training.loop import train

    began = program.began
    started = datetime.fromtimestamp(began, UTC)
    setup = program.assemble()
    for device in setup.strategy.devices:
        reset_peak(device)
    measurement = order.spec.measurement
    clock = WindowClock(
        measurement.warmup_steps, measurement.window_steps, setup.strategy.synchronise
    )
    is_main = program.process.is_main
    progress = RunProgress(order.title, order.spec.training.steps, show=is_main)
    with FirstStep() as kernels:
        # Before the clock: ranks agree on the steps to check before it starts.
        checks = SpotChecks(setup, clock, 1 + measurement.warmup_steps)
        observers: list[Observer] = [checks, clock, Progress(progress)]
        # The first step belongs to the warm-up; without one, it is not observed: that slows it down.
        if measurement.warmup_steps:
            observers.append(FirstKernels(kernels))
        history = train(setup, Observers(*observers), order.output / CHECKPOINTS)
    progress.close()
    memory = _memory_of_all(setup)
    windows = _windows_of_all(clock.windows, setup.strategy)
    communication = setup.strategy.communication()
    weights = whole_weights(setup.model, keep=is_main)
    if is_main:
        with atomic_path(order.output / "model.safetensors") as temporary:
            save_file(weights, temporary, {"format": "pt"})
        history.write(order.output / "steps.parquet")
        repeat = Repeat(
            variant=order.spec.variant,
            repeat=order.repeat,
            status="ok",
            reason=None,
            traceback=None,
            topology=setup.strategy.topology(),
            parameters=setup.parameters,
            steps=order.spec.training.steps,
            resumed_at=history.resumed_at,
            startup_seconds=clock.started_at and clock.started_at - began,
            warmup_seconds=clock.warmup_seconds,
            compile_seconds=compile_seconds(setup.model),
            checkpoint_seconds=median(history.checkpoint_seconds or [0.0]) or None,
            replayed=replayed_share(setup.model),
            total_seconds=time.time() - began,
            windows=windows,
            validations=history.validations,
            memory=memory,
            communication=communication,
            numerics=setup.precision.report(),
            kernels=kernels.read(setup.model) if kernels.seen else None,
            spot_checks=checks.found,
            provenance=collect(order.spec, order.command, started),
        )
        write_text(order.output / "metrics.json", repeat.model_dump_json(indent=2) + "\n")
    setup.strategy.synchronise()
    setup.strategy.close()


def _memory_of_all(setup: "Setup") -> list[RankMemory]:
    """The peak memory of every device of every rank."""
    from transformer_core.machine.peak_memory import rank_memory
    from transformer_core.parallel.strategy import gather_texts

    rank, devices = setup.process.rank, setup.strategy.devices
    kind = TypeAdapter(list[RankMemory])
    mine = [rank_memory(rank, device) for device in devices]
    if setup.process.world_size == 1:
        return mine
    texts = gather_texts(kind.dump_json(mine).decode(), setup.device)
    return [memory for text in texts for memory in kind.validate_json(text)]


def _windows_of_all(windows: list[Window], strategy: "Strategy") -> list[Window]:
    """The main rank's windows with the longest wait for input of any rank."""
    waits = strategy.gather([window.input_wait_seconds for window in windows])
    return [
        window.model_copy(update={"input_wait_seconds": max(of_ranks)})
        for window, of_ranks in zip(windows, zip(*waits, strict=True), strict=True)
    ]
