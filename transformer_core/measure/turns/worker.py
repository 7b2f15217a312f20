"""One process of a side that takes turns. Started by :mod:`transformer_core.measure.paired`.

It trains with the same loop as a timed run; its observer waits between the turns.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.results import Probe, ShardManifest
from schemas.study import RunSpec
from transformer_core.data.local_copies import open_nearest
from transformer_core.measure.cores import keep_to
from transformer_core.measure.outcome import supervised
from transformer_core.measure.peaks import rank_memory, reset_peak
from transformer_core.measure.planted import PlantedDelay
from transformer_core.measure.probe import probe_cuda
from transformer_core.measure.provenance import collect
from transformer_core.measure.turns import (
    Hello,
    Leave,
    ProbeDevices,
    Report,
    Seat,
    TellMemory,
    TellProvenance,
    Turn,
)
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import this_process
from transformer_core.train.assemble import Setup, assemble
from transformer_core.train.loop import train

ENDLESS_STEPS = 1_000_000
"""More steps than any session has."""


class TurnsOver(Exception):
    """There is no further turn: the training ends here, in the middle of it."""


class TurnTaker:
    """The observer of a training that works in turns.

    The first ``lead`` steps of a turn are not timed: they bring caches, clocks and ranks to where
    they are in the middle of a training. The clock is read at synchronised points only. ``prepare``
    is called once, before the first of them.
    """

    def __init__(
        self,
        seat: Seat,
        spec: RunSpec,
        strategy: Strategy,
        planted: PlantedDelay | None,
        prepare: Callable[[], None] = lambda: None,
        now: Any = time.perf_counter,
    ) -> None:
        self._seat = seat
        self._spec = spec
        self._strategy = strategy
        self._planted = planted
        self._prepare = prepare
        self._now = now
        self._turn = Turn(0, 0)
        self._step = 0

    def start(self, step: int) -> None:
        """See :class:`transformer_core.train.loop.Observer`; likewise below."""
        self._wait()
        self._prepare()

    def updated(
        self, step: int, target_tokens: int, loss_sum: torch.Tensor, norm: torch.Tensor
    ) -> None:
        pass  # a clock must not wait for the device

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        if self._planted:
            self._planted.step_done()
        self._step += 1
        if self._step > self._turn.lead:
            self._tokens += tokens
            self._padded_tokens += padded_tokens
            self._input_wait_seconds += input_wait_seconds
        elif self._step == self._turn.lead:
            self._begin()
        if self._step == self._turn.lead + self._turn.steps:
            self._strategy.synchronise()
            seconds = self._now() - self._began
            self._seat.answer(
                Report(seconds, self._tokens, self._padded_tokens, self._input_wait_seconds)
            )
            self._wait()

    def logged(self, step: int, loss: float) -> None:
        pass

    def validated(self, step: int, loss: float) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass

    def _wait(self) -> None:
        """Do what is asked for until it is a turn; TurnsOver if there is none."""
        while True:
            match self._seat.next_task():
                case Turn() as turn:
                    self._turn = turn
                    self._step = 0
                    if self._planted:
                        self._planted.begin()
                    if not turn.lead:
                        self._begin()
                    return
                case TellMemory():
                    self._seat.answer(self._peak_memory())
                case ProbeDevices():
                    self._seat.answer(self._probe())
                case TellProvenance(command, started):
                    self._seat.answer(collect(self._spec, command, started))
                case Leave():
                    raise TurnsOver

    def _begin(self) -> None:
        self._tokens = self._padded_tokens = 0
        self._input_wait_seconds = 0.0
        self._strategy.synchronise()
        self._began = self._now()

    def _peak_memory(self) -> int | None:
        rank = self._strategy.process.rank
        peaks = [rank_memory(rank, device).peak_bytes for device in self._strategy.devices]
        known = [peak for peak in peaks if peak is not None]
        return max(known, default=None)

    def _probe(self) -> list[Probe]:
        found = [probe_cuda(device) for device in self._strategy.devices if device.type == "cuda"]
        if found:
            torch.cuda.empty_cache()
        for device in self._strategy.devices:
            reset_peak(device)
        return found


def endless(spec: RunSpec) -> RunSpec:
    """``spec`` as a training that nothing interrupts, and that ends when there is no more turn."""
    # A rate that falls to 0 at the end of the training would go on below it.
    steps = max(spec.training.steps, ENDLESS_STEPS)
    changes = {"steps": steps, "validate_every": 0, "checkpoint_every": 0}
    return spec.model_copy(update={"training": spec.training.model_copy(update=changes)})


def run(arguments: argparse.Namespace) -> None:
    """Set the training up, take a seat, and train whenever it is this side's turn."""
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    process = this_process(spec.machine, spec.processes_per_node)
    if spec.machine.threads:
        torch.set_num_threads(spec.machine.threads)
    shards = arguments.data / "shards"
    manifest = ShardManifest.model_validate_json((shards / "train/manifest.json").read_text())
    setup: Setup = assemble(
        endless(spec),
        process,
        manifest.vocabulary,
        open_nearest(shards / "train/manifest.json"),
        open_nearest(shards / "validation/manifest.json"),
    )
    strategy = setup.strategy
    for device in strategy.devices:
        reset_peak(device)
    topology = strategy.topology()
    seat = Seat(arguments.desk, Hello(arguments.side, process.rank, topology))
    planted = None
    if arguments.planted is not None:
        # The base class waits for the devices of this process, and not for other ranks.
        planted = PlantedDelay(arguments.planted, lambda: Strategy.synchronise(strategy))

    def prepare() -> None:
        # Of several ranks, gloo's threads take the cores that are left, as in any training.
        if process.world_size == 1 and topology.device == "cpu":
            keep_to(torch.get_num_threads())

    taker = TurnTaker(seat, spec, strategy, planted, prepare)
    try:
        train(setup, taker, arguments.output / "no-checkpoints")
    except TurnsOver:
        strategy.synchronise()
        strategy.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--side", required=True)
    parser.add_argument("--desk", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--planted", type=float)
    arguments = parser.parse_args()
    with supervised(arguments.output):
        run(arguments)


if __name__ == "__main__":
    main()
