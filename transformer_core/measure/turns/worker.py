"""One process of a side that takes turns. Started by :mod:`transformer_core.measure.turns.job`.

It trains with the same loop as a timed run; its observer waits between the turns.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from schemas.config.run_spec import RunSpec
from schemas.results import Probe
from schemas.results.kernels import StepKernels
from transformer_core.data.sharding.training_shards import open_training_shards
from transformer_core.machine.core_affinity import keep_to
from transformer_core.machine.peak_memory import rank_memory, reset_peak
from transformer_core.machine.provenance import collect
from transformer_core.machine.speed_probe import probe_cuda
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.measure.turns.order import TurnsOrder
from transformer_core.measure.turns.planted_slowdown import PlantedDelay
from transformer_core.parallel.strategies.strategy import Strategy
from transformer_core.run.coordinator import (
    Hello,
    Leave,
    ProbeDevices,
    Report,
    TellKernels,
    TellMemory,
    TellProvenance,
    Turn,
    Turns,
    announced_session,
)
from transformer_core.run.preamble import carry_out, take_place
from transformer_core.training.assemble import Setup, assemble
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer

ENDLESS_STEPS = 1_000_000
"""More steps than any session has."""
SEEDS = 2**32
"""How many seeds there are."""


class TurnsOver(Exception):
    """There is no further turn: the training ends here, in the middle of it."""


def refuse(task: Any) -> Any:
    """No measurement but the own one has further tasks."""
    raise TypeError(f"{task} is no task of a side")


class TurnTaker(Observer):
    """Lets a training work in turns.

    The first ``lead`` steps of a turn are not timed: they bring caches, clocks and ranks to where
    they are in the middle of a training. The clock is read at synchronised points only; ``updated``
    reads nothing, since a clock must not wait for the device. ``prepare`` is called once, before
    the first of them, and ``rest`` at the end of each. ``first`` sees the first step, whose
    ``kernels`` are told to those who ask. Between turns ``answer`` does what else a measurement
    asks for.
    """

    def __init__(
        self,
        turns: Turns,
        spec: RunSpec,
        strategy: Strategy,
        planted: PlantedDelay | None,
        prepare: Callable[[], None] = lambda: None,
        rest: Callable[[], None] = lambda: None,
        answer: Callable[[Any], Any] = refuse,
        first: FirstStep | None = None,
        kernels: Callable[[], StepKernels | None] = lambda: None,
        now: Any = time.perf_counter,
    ) -> None:
        self._turns = turns
        self._spec = spec
        self._strategy = strategy
        self._planted = planted
        self._prepare = prepare
        self._rest = rest
        self._answer = answer
        self._first = first
        self._kernels = kernels
        self._now = now
        self._turn = Turn(0, 0)
        self._step = 0

    def start(self, step: int) -> None:
        self._wait()
        self._prepare()
        if self._first is not None:
            self._first.begin()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        if self._first is not None:
            self._first.end()
            self._first = None

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
            self._rest()
            self._turns.answer(
                Report(seconds, self._tokens, self._padded_tokens, self._input_wait_seconds)
            )
            self._wait()

    def _wait(self) -> None:
        """Do what is asked for until it is a turn; TurnsOver if there is none."""
        while True:
            match self._turns.next():
                case Turn() as turn:
                    self._turn = turn
                    self._step = 0
                    if self._planted:
                        self._planted.begin()
                    if not turn.lead:
                        self._begin()
                    return
                case TellMemory():
                    self._turns.answer(self._peak_memory())
                case TellKernels():
                    self._turns.answer(self._kernels())
                case ProbeDevices():
                    self._turns.answer(self._probe())
                case TellProvenance(command, started):
                    self._turns.answer(collect(self._spec, command, started))
                case Leave():
                    raise TurnsOver
                case task:
                    self._turns.answer(self._answer(task))

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


def of_session(spec: RunSpec, session: int) -> RunSpec:
    """``spec`` with the seed of a session, the first of which has that of the study: how much
    faster a side is depends on the batches, so each session has others."""
    seed = (spec.training.seed + session - 1) % SEEDS
    return spec.model_copy(update={"training": spec.training.model_copy(update={"seed": seed})})


def give_memory_back(setup: Setup) -> None:
    """Leave the devices to others, but for what the next step cannot do without."""
    # Each step begins without gradients anyway.
    setup.optimizer.zero_grad(set_to_none=True)
    for device in setup.strategy.devices:
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.empty_cache()


def run(order: TurnsOrder) -> None:
    """Train without an end whenever it is this side's turn."""
    take_turns(order, endless(order.spec))


def take_turns(
    order: TurnsOrder, spec: RunSpec, answer: Callable[[Setup, Any], Any] | None = None
) -> None:
    """Set the training of ``spec`` up, take a turns, and train whenever it is this side's turn;
    ``answer`` is for tasks that are none of comparisons."""
    process = take_place(order)
    # After the meeting of all ranks: those of other hosts may have started before the session did.
    spec = of_session(spec, announced_session(order.coordinator))
    shards = open_training_shards(order.data)
    setup = assemble(spec, process, shards.vocabulary, *shards.stores)
    strategy = setup.strategy
    for device in strategy.devices:
        reset_peak(device)
    topology = strategy.topology()
    turns = Turns(order.coordinator, Hello(order.side, process.rank, topology))
    planted = None
    if order.planted is not None:
        # The base class waits for the devices of this process, and not for other ranks.
        planted = PlantedDelay(order.planted, lambda: Strategy.synchronise(strategy))

    def prepare() -> None:
        # Of several ranks, gloo's threads take the cores that are left, as in any training.
        if process.world_size == 1 and topology.device == "cpu":
            keep_to(torch.get_num_threads())

    def rest() -> None:
        if order.keeps == "state":
            give_memory_back(setup)

    further = partial(answer, setup) if answer else refuse
    with FirstStep() as first:

        def kernels() -> StepKernels:
            return first.read(setup.model)

        taker = TurnTaker(
            turns, order.spec, strategy, planted, prepare, rest, further, first, kernels
        )
        try:
            train(setup, taker, order.output / "no-checkpoints", validate_last=False)
        except TurnsOver:
            strategy.synchronise()
            strategy.close()


def main() -> None:
    carry_out(TurnsOrder, run)


if __name__ == "__main__":
    main()
