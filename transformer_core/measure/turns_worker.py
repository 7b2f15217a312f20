"""One process of a side that takes turns: it trains with the loop of a timed run, and an observer
lets it train only in its turns.

To test the protocol of comparisons, it can make steps longer by a known share.
"""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from schemas.config.run_spec import RunSpec
from schemas.results import Probe
from transformer_core.common.cores import keep_to
from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.machine.machine_state import probe_cuda
from transformer_core.machine.peak_memory import rank_memory, reset_peak
from transformer_core.machine.provenance import collect
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.measure.memory_fit import Keeping
from transformer_core.measure.sessions import TurnsOrder
from transformer_core.parallel.strategy import Strategy
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
    announced,
)
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer

ENDLESS_STEPS = 1_000_000
"""More steps than any session has."""
SEEDS = 2**32
"""Number of possible seeds."""


def endless(spec: RunSpec) -> RunSpec:
    """``spec`` as an uninterrupted training that ends with its last turn. It compresses messages as in the
    long run: the steps before are too few to count there, and too many in a session."""
    # Otherwise a rate that falls to 0 at the end of the training would continue below 0.
    steps = max(spec.training.steps, ENDLESS_STEPS)
    spec = spec.compressing_at_once()
    return spec.with_training(steps=steps, validate_every=0, checkpoint_every=0)


def of_session(spec: RunSpec, session: int) -> RunSpec:
    """``spec`` with the seed of a session; the first session has the study's. Speed-ups depend on the
    batches, so each session has different ones."""
    return spec.with_training(seed=(spec.training.seed + session - 1) % SEEDS)


def small_batch(setup: Setup, share: float) -> GlobalBatch | None:
    """A batch with this share of the pairs of another, but two rows for each device and micro-batch
    if it has so many: layers would be compiled again for a single row. None if untimed steps take
    the next batches, as on a GPU."""
    if share >= 1.0 or setup.device.type != "cpu":
        return None
    with closing(setup.feed.batches()) as batches:
        whole = next(batches).pairs
    least = 2 * setup.process.world_size * setup.spec.training.accumulation.micro_batches
    return setup.feed.fewer(min(whole, max(least, round(share * whole))))


def give_memory_back(setup: Setup) -> None:
    """Frees device memory for others, except what the next step needs."""
    # Each step begins without gradients anyway.
    setup.optimizer.zero_grad(set_to_none=True)
    for device in setup.strategy.devices:
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.empty_cache()


@dataclass(eq=False)
class PlantedDelay:
    """Makes every step longer by ``share`` of its time, with a busy wait on the host.

    The wait begins when the device has completed the step, so that the share is exact whichever of
    host and device is slower. The side it is compared with must also wait for its device in every
    step: give it a share of 0.
    """

    share: float
    synchronise: Callable[[], None]
    now: Callable[[], float] = time.perf_counter

    def begin(self) -> None:
        """Starts the first step of a turn."""
        self._began = self.now()

    def step_done(self) -> None:
        self.synchronise()
        done = self.now()
        end = done + self.share * (done - self._began)
        while self.now() < end:
            pass
        self._began = end


class TurnsOver(Exception):
    """There is no further turn: the training ends early."""


def refuse(setup: Setup, task: Any) -> Any:
    raise TypeError(f"{task} is not a task for a side")


@dataclass(eq=False)
class TurnTaker(Observer):
    """Lets the training of ``setup`` run in turns.

    On a CPU, the very first step takes the longest batch: from then on, the C library returns as
    much memory to the kernel as in a long training, which has met such a batch. The first ``lead``
    steps of a turn are not timed: they bring caches, clocks and ranks into the state of an ongoing
    training, on a CPU with a small batch. The clock is read only at synchronised points; ``updated``
    reads nothing, since a clock must not wait for the device. ``first`` observes the first step.
    ``answer`` handles a measurement's other tasks between turns.
    """

    turns: Turns
    spec: RunSpec  # as ordered, for the provenance
    setup: Setup
    planted: PlantedDelay | None = None
    keeps: Keeping = "all"
    answer: Callable[[Setup, Any], Any] = refuse
    now: Callable[[], float] = time.perf_counter
    first: FirstStep = field(default_factory=FirstStep)
    _small: GlobalBatch | None = None

    def start(self, step: int) -> None:
        self._wait()
        # With several ranks, gloo's threads use the remaining cores, as in any training.
        if self.setup.process.world_size == 1 and self.setup.device.type == "cpu":
            keep_to(torch.get_num_threads())
        self.first.begin()
        # Observed, because a certificate's short run also makes its batches within the step.
        if self.setup.device.type == "cpu":
            self.setup.feed.instead = self.setup.feed.longest()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        self.first.end()

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        if self.planted:
            self.planted.step_done()
        if step == 1:
            self.setup.feed.instead = None
        self._step += 1
        if self._step > self._turn.lead:
            self._tokens += tokens
            self._padded_tokens += padded_tokens
            self._input_wait_seconds += input_wait_seconds
        elif self._step == self._turn.lead:
            self.setup.feed.instead = None
            self._begin()
        if self._step == self._turn.lead + self._turn.steps:
            self.setup.strategy.synchronise()
            seconds = self.now() - self._began
            self._answer(
                Report(seconds, self._tokens, self._padded_tokens, self._input_wait_seconds)
            )
            self._wait()

    def _wait(self) -> None:
        """Answers tasks until the next turn; raises TurnsOver if there is none."""
        while True:
            self.setup.strategy.rest()
            match self.turns.next():
                case Turn() as turn:
                    self._turn = turn
                    self._step = 0
                    if self.planted:
                        self.planted.begin()
                    if not turn.lead:
                        self._begin()
                        return
                    self._small = self._small or small_batch(self.setup, turn.lead_batch)
                    self.setup.feed.instead = self._small
                    return
                case TellMemory():
                    self.turns.answer(self._peak_memory())
                case TellKernels():
                    self.turns.answer(self.first.read(self.setup.model))
                case ProbeDevices():
                    self.turns.answer(self._probe())
                case TellProvenance(command, started):
                    self.turns.answer(collect(self.spec, command, started))
                case Leave():
                    raise TurnsOver
                case task:
                    self._answer(self.answer(self.setup, task))

    def _answer(self, value: Any) -> None:
        """Answers a task that takes memory, after giving it back if the other sides need it."""
        if self.keeps == "state":
            give_memory_back(self.setup)
        self.turns.answer(value)

    def _begin(self) -> None:
        self._tokens = self._padded_tokens = 0
        self._input_wait_seconds = 0.0
        self.setup.strategy.synchronise()
        self._began = self.now()

    def _peak_memory(self) -> int | None:
        rank = self.setup.process.rank
        peaks = [rank_memory(rank, device).peak_bytes for device in self.setup.strategy.devices]
        return max((peak for peak in peaks if peak is not None), default=None)

    def _probe(self) -> list[Probe]:
        devices = self.setup.strategy.devices
        found = []
        # The sides may have left no room for it.
        with suppress(torch.OutOfMemoryError):
            found = [probe_cuda(device) for device in devices if device.type == "cuda"]
        if self.setup.device.type == "cuda":
            torch.cuda.empty_cache()
        for device in devices:
            reset_peak(device)
        return found


def work(order: TurnsOrder, program: Program) -> None:
    """Trains whenever it is this side's turn, until the coordinator dismisses it."""
    take_turns(order, program, endless(order.spec), representative=True)


def take_turns(
    order: TurnsOrder,
    program: Program,
    spec: RunSpec,
    answer: Callable[[Setup, Any], Any] = refuse,
    representative: bool = False,
) -> None:
    """Assembles the training of ``spec``, and trains whenever it is this side's turn, on request with
    batches in a representative order; ``answer`` handles tasks that are not part of comparisons."""
    process = program.process
    # After the rendezvous of all ranks: other hosts may have started before the session.
    session = announced(order.coordinator)
    setup = program.assemble(of_session(spec, session["session"]))
    setup.feed.representative = representative
    strategy = setup.strategy
    for device in strategy.devices:
        reset_peak(device)
    turns = Turns(order.coordinator, Hello(order.side, process.rank, strategy.topology()))
    planted = None
    if order.planted is not None:
        # The base class waits for this process's devices only, not for other ranks.
        planted = PlantedDelay(order.planted, lambda: Strategy.synchronise(strategy))
    taker = TurnTaker(turns, order.spec, setup, planted, session["keeps"], answer)
    with taker.first:
        try:
            train(setup, taker, order.output / "no-checkpoints", validate_last=False)
        except TurnsOver:
            strategy.synchronise()
            strategy.close()
