"""Observers of a training: a clock, a profiler, a progress bar, one beside the other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # clocks are imported where torch is not
    from torch import Tensor


class Observer:
    """Watches a training without doing anything: override the methods you need."""

    def start(self, step: int) -> None:
        """Training starts or resumes with ``step`` optimizer steps done."""

    def updated(self, step: int, target_tokens: int, loss_sum: "Tensor", norm: "Tensor") -> None:
        """The weights were updated. ``loss_sum`` of this rank and ``norm`` of the whole gradient
        are still on the device: to read them is to wait for it."""

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        """An optimizer step is done (on the host; the device may still be working on it)."""

    def logged(self, step: int, loss: float) -> None:
        """The loss of a step was read."""

    def validated(self, step: int, loss: float) -> None:
        """A validation loss was computed."""

    def pause(self) -> None:
        """Pauses before work that is not training (validation, a checkpoint)."""

    def resume(self) -> None:
        """Training resumes."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state` returned."""


class Observers(Observer):
    """Several observers of one training, called in order. Their states are merged, so each uses its
    own names."""

    def __init__(self, *observers: Observer) -> None:
        self.observers: Sequence[Observer] = observers

    def start(self, step: int) -> None:
        for observer in self.observers:
            observer.start(step)

    def updated(self, step: int, target_tokens: int, loss_sum: "Tensor", norm: "Tensor") -> None:
        for observer in self.observers:
            observer.updated(step, target_tokens, loss_sum, norm)

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        for observer in self.observers:
            observer.step_done(step, pairs, tokens, padded_tokens, input_wait_seconds)

    def logged(self, step: int, loss: float) -> None:
        for observer in self.observers:
            observer.logged(step, loss)

    def validated(self, step: int, loss: float) -> None:
        for observer in self.observers:
            observer.validated(step, loss)

    def pause(self) -> None:
        for observer in self.observers:
            observer.pause()

    def resume(self) -> None:
        for observer in self.observers:
            observer.resume()

    def state(self) -> dict[str, Any]:
        return {name: value for each in self.observers for name, value in each.state().items()}

    def load(self, state: dict[str, Any]) -> None:
        for observer in self.observers:
            observer.load(state)
