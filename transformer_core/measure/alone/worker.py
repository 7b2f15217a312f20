"""One process of a timed run. Started by :mod:`transformer_core.measure.run`, not by hand."""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from schemas.results import RankMemory, Repeat, ShardManifest, Window
from schemas.study import RunSpec
from transformer_core.data.files import atomic_path, write_text
from transformer_core.data.local_copies import open_nearest
from transformer_core.measure.clock import WindowClock
from transformer_core.measure.outcome import CHECKPOINTS, supervised
from transformer_core.measure.peaks import rank_memory, reset_peak
from transformer_core.measure.progress import Progress, log_to
from transformer_core.measure.provenance import collect
from transformer_core.parallel.sharding import whole_weights
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import this_process
from transformer_core.train.assemble import Setup, assemble
from transformer_core.train.loop import train


class TimedRun:
    """The observer of a timed run: clock and progress."""

    def __init__(self, clock: WindowClock, progress: Progress) -> None:
        self.clock = clock
        self.progress = progress
        self.first_step_at: float | None = None

    def start(self, step: int) -> None:
        """See :class:`transformer_core.train.loop.Observer`; likewise below."""
        self.progress.start(step)
        self.clock.start(step)
        self.first_step_at = time.time()

    def updated(
        self, step: int, target_tokens: int, loss_sum: torch.Tensor, norm: torch.Tensor
    ) -> None:
        pass  # a clock must not wait for the device

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


def run(arguments: argparse.Namespace, began: float) -> None:
    """Train, and on the main rank write model, steps and metrics, in this order."""
    started = datetime.now(UTC)
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    process = this_process(spec.machine, spec.processes_per_node)
    output: Path = arguments.output
    if process.is_main:
        log_to(arguments.log_file)
    if spec.machine.threads:
        torch.set_num_threads(spec.machine.threads)
    shards = arguments.data / "shards"
    manifest = ShardManifest.model_validate_json((shards / "train/manifest.json").read_text())
    setup = assemble(
        spec,
        process,
        manifest.vocabulary,
        open_nearest(shards / "train/manifest.json"),
        open_nearest(shards / "validation/manifest.json"),
    )
    for device in setup.strategy.devices:
        reset_peak(device)
    measurement = spec.measurement
    clock = WindowClock(
        measurement.warmup_steps, measurement.window_steps, setup.strategy.synchronise
    )
    name = f"{spec.variant}, repeat {arguments.repeat}"
    progress = Progress(name, spec.training.steps, show=process.is_main)
    observer = TimedRun(clock, progress)
    history = train(setup, observer, output / CHECKPOINTS)
    progress.close()
    memory = _memory_of_all(setup)
    windows = _windows_of_all(clock.windows, setup.strategy)
    communication = setup.strategy.communication()
    weights = whole_weights(setup.model, keep=process.is_main)
    if process.is_main:
        with atomic_path(output / "model.safetensors") as temporary:
            save_file(weights, temporary, {"format": "pt"})
        history.write(output / "steps.parquet")
        repeat = Repeat(
            variant=spec.variant,
            repeat=arguments.repeat,
            status="ok",
            reason=None,
            traceback=None,
            topology=setup.strategy.topology(),
            parameters=setup.parameters,
            steps=spec.training.steps,
            resumed_at=history.resumed_at,
            startup_seconds=observer.first_step_at and observer.first_step_at - began,
            warmup_seconds=clock.warmup_seconds,
            total_seconds=time.time() - began,
            windows=windows,
            validations=history.validations,
            memory=memory,
            communication=communication,
            numerics=setup.precision.report(),
            provenance=collect(spec, arguments.command, started),
        )
        write_text(output / "metrics.json", repeat.model_dump_json(indent=2) + "\n")
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--log-file", type=Path)
    arguments = parser.parse_args()
    with supervised(arguments.output):
        run(arguments, began)


if __name__ == "__main__":
    main()
