"""What watches a training: a clock, a profiler, a progress bar."""

from typing import Any

import torch


class Observer:
    """Watches a training, and does nothing: override what you need."""

    def start(self, step: int) -> None:
        """Training starts, or goes on, with ``step`` optimizer steps done."""

    def updated(
        self, step: int, target_tokens: int, loss_sum: torch.Tensor, norm: torch.Tensor
    ) -> None:
        """The weights were updated. ``loss_sum`` of this rank and ``norm`` of the whole gradient
        are still on the device: to read them is to wait for it."""

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        """An optimizer step is done (on the host; the device may still be at it)."""

    def logged(self, step: int, loss: float) -> None:
        """The loss of a step was read."""

    def validated(self, step: int, loss: float) -> None:
        """A validation loss was computed."""

    def pause(self) -> None:
        """What follows is not training (validation, a checkpoint)."""

    def resume(self) -> None:
        """Training goes on."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
