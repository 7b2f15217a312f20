"""Throughput windows between synchronised clock readings."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schemas.results import Window
from transformer_core.training.observer import Observer


@dataclass(eq=False)
class WindowClock(Observer):
    """Divides training into a warm-up and windows of equal numbers of steps.

    It synchronises the device and reads the clock only at the beginning and end of a warm-up, a
    window, and an interruption by validation or a checkpoint: synchronising in every step would slow
    down the training. The first ``warmup_steps`` after each start, and the time in pauses, belong to
    no window.
    """

    warmup_steps: int
    window_steps: int
    synchronise: Callable[[], None]
    now: Callable[[], float] = time.perf_counter
    windows: list[Window] = field(default_factory=list)
    """Complete windows, including those of earlier sessions."""
    warmup_seconds: float | None = None
    """Time of the last complete warm-up, without pauses; None before its end."""
    started_at: float | None = None
    """When the first step began, in seconds since the epoch."""

    def start(self, step: int) -> None:
        """Drops a window that an earlier session left unfinished, and restarts the warm-up."""
        self._warming_up = self.warmup_steps > 0
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
        length = self.warmup_steps if self._warming_up else self.window_steps
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
        # The same reading ends one window and begins the next, so no time is lost between them.
        self._begin(step, read)

    def _begin(self, step: int, read: float) -> None:
        self._first_step = step + 1
        self._began = read
        self._pauses = 0.0
        self._pairs = self._tokens = self._padded_tokens = 0
        self._input_wait_seconds = 0.0

    def _read(self) -> float:
        self.synchronise()
        return self.now()
