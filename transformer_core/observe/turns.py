"""Training in turns: an observer that lets a training run only in its turns.

To test the protocol of comparisons, it can make steps longer by a known share.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schemas.config.run_spec import RunSpec
from schemas.results import Probe
from schemas.results.runs import StepKernels
from transformer_core.machine.machine_state import probe_cuda
from transformer_core.machine.peak_memory import rank_memory, reset_peak
from transformer_core.machine.provenance import collect
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.parallel.strategy import Strategy
from transformer_core.run.coordinator import (
    Leave,
    ProbeDevices,
    Report,
    TellKernels,
    TellMemory,
    TellProvenance,
    Turn,
    Turns,
)
from transformer_core.training.observer import Observer


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

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
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


def refuse(task: Any) -> Any:
    raise TypeError(f"{task} is not a task for a side")


@dataclass(eq=False)
class TurnTaker(Observer):
    """Lets a training run in turns.

    The first ``lead`` steps of a turn are not timed: they bring caches, clocks and ranks into the
    state of an ongoing training. The clock is read only at synchronised points; ``updated`` reads
    nothing, since a clock must not wait for the device. ``prepare`` is called once, before the first
    turn, and ``rest`` at the end of each. ``first`` observes the first step, and ``kernels`` returns
    what it saw. ``answer`` handles a measurement's other tasks between turns.
    """

    turns: Turns
    spec: RunSpec
    strategy: Strategy
    planted: PlantedDelay | None
    prepare: Callable[[], None] = lambda: None
    rest: Callable[[], None] = lambda: None
    answer: Callable[[Any], Any] = refuse
    first: FirstStep | None = None
    kernels: Callable[[], StepKernels | None] = lambda: None
    now: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._turn = Turn(0, 0)
        self._step = 0

    def start(self, step: int) -> None:
        self._wait()
        self.prepare()
        if self.first is not None:
            self.first.begin()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        if self.first is not None:
            self.first.end()
            self.first = None

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        if self.planted:
            self.planted.step_done()
        self._step += 1
        if self._step > self._turn.lead:
            self._tokens += tokens
            self._padded_tokens += padded_tokens
            self._input_wait_seconds += input_wait_seconds
        elif self._step == self._turn.lead:
            self._begin()
        if self._step == self._turn.lead + self._turn.steps:
            self.strategy.synchronise()
            seconds = self.now() - self._began
            self.rest()
            self.turns.answer(
                Report(seconds, self._tokens, self._padded_tokens, self._input_wait_seconds)
            )
            self._wait()

    def _wait(self) -> None:
        """Answers tasks until the next turn; raises TurnsOver if there is none."""
        while True:
            match self.turns.next():
                case Turn() as turn:
                    self._turn = turn
                    self._step = 0
                    if self.planted:
                        self.planted.begin()
                    if not turn.lead:
                        self._begin()
                    return
                case TellMemory():
                    self.turns.answer(self._peak_memory())
                case TellKernels():
                    self.turns.answer(self.kernels())
                case ProbeDevices():
                    self.turns.answer(self._probe())
                case TellProvenance(command, started):
                    self.turns.answer(collect(self.spec, command, started))
                case Leave():
                    raise TurnsOver
                case task:
                    self.turns.answer(self.answer(task))

    def _begin(self) -> None:
        self._tokens = self._padded_tokens = 0
        self._input_wait_seconds = 0.0
        self.strategy.synchronise()
        self._began = self.now()

    def _peak_memory(self) -> int | None:
        rank = self.strategy.process.rank
        peaks = [rank_memory(rank, device).peak_bytes for device in self.strategy.devices]
        known = [peak for peak in peaks if peak is not None]
        return max(known, default=None)

    def _probe(self) -> list[Probe]:
        found = [probe_cuda(device) for device in self.strategy.devices if device.type == "cuda"]
        if found:
            torch.cuda.empty_cache()
        for device in self.strategy.devices:
            reset_peak(device)
        return found
