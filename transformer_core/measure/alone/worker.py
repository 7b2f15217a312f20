"""One process of a timed run. Started by :mod:`transformer_core.measure.alone.job`, not by hand."""

import time
from datetime import UTC, datetime
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from schemas.results import RankMemory, Repeat, Window
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.progress import RunProgress
from transformer_core.data.sharding.training_shards import open_training_shards
from transformer_core.machine.peak_memory import rank_memory, reset_peak
from transformer_core.machine.provenance import collect
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.measure.alone.order import TimedRunOrder
from transformer_core.measure.alone.step_windows import WindowClock
from transformer_core.models.compiled_layers import compile_seconds
from transformer_core.parallel.strategies.sharded_weights import whole_weights
from transformer_core.parallel.strategies.strategy import Strategy
from transformer_core.run.preamble import carry_out, take_place
from transformer_core.run.statuses import CHECKPOINTS
from transformer_core.training.assemble import Setup, assemble
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer


class TimedRun(Observer):
    """Clock and progress of a timed run. In ``updated`` it reads nothing: a clock must not wait for
    the device."""

    def __init__(
        self, clock: WindowClock, progress: RunProgress, kernels: FirstStep | None = None
    ) -> None:
        self.clock = clock
        self.progress = progress
        self.kernels = kernels
        self.first_step_at: float | None = None

    def start(self, step: int) -> None:
        self.progress.start(step)
        self.clock.start(step)
        self.first_step_at = time.time()
        # The first step is of the warm-up; without one, nobody looks.
        if self.kernels is not None and step == 0:
            self.kernels.begin()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        if self.kernels is not None:
            self.kernels.end()

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        self.clock.step_done(step, pairs, tokens, padded_tokens, input_wait_seconds)
        self.progress.step_done(tokens)

    def logged(self, step: int, loss: float) -> None:
        self.progress.logged(step, loss)

    def validated(self, step: int, loss: float) -> None:
        self.progress.validated(step, loss)

    def pause(self) -> None:
        self.clock.pause()

    def resume(self) -> None:
        self.clock.resume()

    def state(self) -> dict[str, Any]:
        return self.clock.state()

    def load(self, state: dict[str, Any]) -> None:
        self.clock.load(state)


def run(order: TimedRunOrder, began: float) -> None:
    """Train, and on the main rank write model, steps and metrics, in this order."""
    started = datetime.now(UTC)
    process = take_place(order)
    shards = open_training_shards(order.data)
    setup = assemble(order.spec, process, shards.vocabulary, *shards.stores)
    for device in setup.strategy.devices:
        reset_peak(device)
    measurement = order.spec.measurement
    clock = WindowClock(
        measurement.warmup_steps, measurement.window_steps, setup.strategy.synchronise
    )
    progress = RunProgress(order.title, order.spec.training.steps, show=process.is_main)
    with FirstStep() as kernels:
        observer = TimedRun(clock, progress, kernels if measurement.warmup_steps else None)
        history = train(setup, observer, order.output / CHECKPOINTS)
    progress.close()
    memory = _memory_of_all(setup)
    windows = _windows_of_all(clock.windows, setup.strategy)
    communication = setup.strategy.communication()
    weights = whole_weights(setup.model, keep=process.is_main)
    if process.is_main:
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
            startup_seconds=observer.first_step_at and observer.first_step_at - began,
            warmup_seconds=clock.warmup_seconds,
            compile_seconds=compile_seconds(setup.model),
            total_seconds=time.time() - began,
            windows=windows,
            validations=history.validations,
            memory=memory,
            communication=communication,
            numerics=setup.precision.report(),
            kernels=kernels.read(setup.model) if kernels.names else None,
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


def main() -> None:
    began = time.time()
    carry_out(TimedRunOrder, lambda order: run(order, began))


if __name__ == "__main__":
    main()
