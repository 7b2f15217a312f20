"""Throughput windows between synchronised clock readings."""

import time
from collections.abc import Callable
from typing import Any

from schemas.results import Window
from transformer_core.training.observer import Observer


class WindowClock(Observer):
    """Cuts training into a warm-up and windows of equal step counts.

    The device is synchronised, and the clock read, only where a warm-up or window begins or ends
    and where validation or a checkpoint interrupts it: a clock that synchronised in every step
    would slow down what it measures. The first ``warmup_steps`` after each start belong to no
    window; time in pauses belongs to none either.
    """

    def __init__(
        self,
        warmup_steps: int,
        window_steps: int,
        synchronise: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.windows: list[Window] = []  # the closed windows, those of earlier sessions included
        self.warmup_seconds: float | None = None
        """Time of the last finished warm-up, pauses left out; None before there is one."""
        self.started_at: float | None = None
        """When the first step began, in seconds since the epoch."""
        self._warmup_steps = warmup_steps
        self._window_steps = window_steps
        self._synchronise = synchronise
        self._now = now

    def start(self, step: int) -> None:
        """A window that an earlier session left unfinished is dropped, and the warm-up begins
        anew."""
        self._warming_up = self._warmup_steps > 0
        if not self._warming_up:
            self.warmup_seconds = 0.0
        self._begin(step, self._read())
        self.started_at = time.time()

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        self._pairs += pairs
        self._tokens += tokens
        self._padded_tokens += padded_tokens
        self._input_wait_seconds += input_wait_seconds
        length = self._warmup_steps if self._warming_up else self._window_steps
        if step - self._first_step + 1 == length:
            self._close(step)

    def pause(self) -> None:
        self._paused_at = self._read()

    def resume(self) -> None:
        self._pauses += self._read() - self._paused_at

    def state(self) -> dict[str, Any]:
        return {
            "windows": [window.model_dump(mode="json") for window in self.windows],
            "warmup_seconds": self.warmup_seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.windows = [Window.model_validate(window) for window in state["windows"]]
        self.warmup_seconds = state["warmup_seconds"]

    def _close(self, step: int) -> None:
        read = self._read()
        seconds = read - self._began - self._pauses
        if self._warming_up:
            self.warmup_seconds = seconds
            self._warming_up = False
        else:
            self.windows.append(
                Window(
                    first_step=self._first_step,
                    last_step=step,
                    seconds=seconds,
                    pairs=self._pairs,
                    tokens=self._tokens,
                    padded_tokens=self._padded_tokens,
                    input_wait_seconds=self._input_wait_seconds,
                )
            )
        # The same reading ends one window and begins the next: no time falls between them.
        self._begin(step, read)

    def _begin(self, step: int, read: float) -> None:
        self._first_step = step + 1
        self._began = read
        self._pauses = 0.0
        self._pairs = self._tokens = self._padded_tokens = 0
        self._input_wait_seconds = 0.0

    def _read(self) -> float:
        self._synchronise()
        return self._now()
