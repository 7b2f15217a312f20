"""Training in turns: an observer that lets a training work only in its turns.

To test the protocol of comparisons, it can make steps longer by a known share.
"""

import time
from collections.abc import Callable
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


class PlantedDelay:
    """Makes every step longer by ``share`` of its own time, with a busy wait on the host.

    The wait begins when the device has done the step's work, so that the share is exact whether
    the host or the device is the slower. A side that is compared with a planted one must wait for
    its device at every step too: give it a share of 0.
    """

    def __init__(
        self,
        share: float,
        synchronise: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._share = share
        self._synchronise = synchronise
        self._now = now
        self._began = now()

    def begin(self) -> None:
        self._began = self._now()

    def step_done(self) -> None:
        self._synchronise()
        done = self._now()
        end = done + self._share * (done - self._began)
        while self._now() < end:
            pass
        self._began = end


class TurnsOver(Exception):
    """There is no further turn: the training ends here, unfinished."""


def refuse(task: Any) -> Any:
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
        """Answers tasks until the next turn; TurnsOver if there is none."""
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
