"""A timed run, in each of its processes: clock, progress and kernels look on."""

import time
from datetime import UTC, datetime

from safetensors.torch import save_file

from schemas.results import RankMemory, Repeat, Window
from transformer_core.common.files import atomic_path, write_text
from transformer_core.machine.peak_memory import rank_memory, reset_peak
from transformer_core.machine.provenance import collect
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.models.compiled_layers import compile_seconds, replayed_share
from transformer_core.observe.clock import WindowClock
from transformer_core.observe.kernels import FirstKernels
from transformer_core.observe.progress import Progress
from transformer_core.observe.spot_checks import SpotChecks
from transformer_core.parallel.sharded_weights import whole_weights
from transformer_core.parallel.strategy import Strategy
from transformer_core.run.statuses import CHECKPOINTS
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer, Observers


def work(order: TimedRunOrder, program: Program) -> None:
    """Trains, and on the main rank writes model, steps and metrics, in this order."""
    started, began = datetime.now(UTC), program.began
    setup = program.assemble()
    for device in setup.strategy.devices:
        reset_peak(device)
    measurement = order.spec.measurement
    clock = WindowClock(
        measurement.warmup_steps, measurement.window_steps, setup.strategy.synchronise
    )
    is_main = program.process.is_main
    progress = Progress(order.title, order.spec.training.steps, show=is_main)
    with FirstStep() as kernels:
        observers: list[Observer] = [clock, progress]
        # The first step belongs to the warm-up; without a warm-up, it is not observed.
        if measurement.warmup_steps:
            observers.append(FirstKernels(kernels))
        checks = SpotChecks(setup, clock, 1 + measurement.warmup_steps)
        observers.append(checks)
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
            replayed=replayed_share(setup.model),
            total_seconds=time.time() - began,
            windows=windows,
            validations=history.validations,
            memory=memory,
            communication=communication,
            numerics=setup.precision.report(),
            kernels=kernels.read(setup.model) if kernels.names else None,
            spot_checks=checks.found,
            provenance=collect(order.spec, order.command, started),
        )
        write_text(order.output / "metrics.json", repeat.model_dump_json(indent=2) + "\n")
    setup.strategy.synchronise()
    setup.strategy.close()


def _memory_of_all(setup: Setup) -> list[RankMemory]:
    """The peak memory of every device of every rank. On the wire, -1 stands for null."""
    devices = setup.strategy.devices
    mine = [rank_memory(setup.process.rank, device) for device in devices]
    known = list(mine[0].model_dump(exclude={"rank", "device"}))
    flat: list[float] = []
    for device, memory in zip(devices, mine, strict=True):
        values = (getattr(memory, field) for field in known)
        flat += [device.index or 0, *(-1 if value is None else value for value in values)]
    everyone = setup.strategy.gather(flat)
    width = 1 + len(known)
    return [
        RankMemory.model_validate(
            {
                "rank": rank,
                "device": f"cuda:{int(row[at])}" if setup.device.type == "cuda" else "cpu",
                **{
                    field: None if value < 0 else int(value)
                    for field, value in zip(known, row[at + 1 : at + width], strict=True)
                },
            }
        )
        for rank, row in enumerate(everyone)
        for at in range(0, len(row), width)
    ]


def _windows_of_all(windows: list[Window], strategy: Strategy) -> list[Window]:
    """The main rank's windows with the longest wait for input of any rank."""
    waits = strategy.gather([window.input_wait_seconds for window in windows])
    return [
        window.model_copy(update={"input_wait_seconds": max(of_ranks)})
        for window, of_ranks in zip(windows, zip(*waits, strict=True), strict=True)
    ]
