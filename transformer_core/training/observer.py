"""Observers of a training, such as a clock, a profiler or a progress bar."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformer_core.common.progress import RunProgress

if TYPE_CHECKING:  # clocks must not import torch
    from torch import Tensor


class Observer:
    """The interface of observers, whose methods do nothing: override those you need."""

    def start(self, step: int) -> None:
        """Training starts or resumes after ``step`` optimizer steps."""

    def updated(self, step: int, target_tokens: int, loss_sum: "Tensor", norm: "Tensor") -> None:
        """The weights were updated. ``loss_sum`` of this rank and ``norm`` of the whole gradient
        are still on the device; reading them waits for it."""

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        """An optimizer step is done (on the host; the device may still be working on it)."""

    def logged(self, step: int, loss: float) -> None:
        """The loss of a step was read."""

    def validated(self, step: int, loss: float) -> None:
        """A validation loss was computed."""

    def pause(self) -> None:
        """Training pauses for other work (validation, a checkpoint)."""

    def resume(self) -> None:
        """Training continues after a pause."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state` returned."""


def _each(name: str) -> Callable[..., None]:
    """A method that calls the method ``name`` of each observer in order."""

    def method(self: "Observers", *arguments: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*arguments)

    return method


class Observers(Observer):
    """Several observers of one training, called in order. Their states are merged, so they must not
    use the same names."""

    def __init__(self, *observers: Observer) -> None:
        self.observers: Sequence[Observer] = observers

    start = _each("start")
    updated = _each("updated")
    step_done = _each("step_done")
    logged = _each("logged")
    validated = _each("validated")
    pause = _each("pause")
    resume = _each("resume")
    load = _each("load")

    def state(self) -> dict[str, Any]:
        return {name: value for each in self.observers for name, value in each.state().items()}


class Progress(Observer):
    """Shows the steps and losses of a training as a bar, or as plain lines of a log."""

    def __init__(self, progress: RunProgress) -> None:
        self.progress = progress

    def start(self, step: int) -> None:
        self.progress.start(step)

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        self.progress.step_done(tokens)

    def logged(self, step: int, loss: float) -> None:
        self.progress.logged(step, loss)

    def validated(self, step: int, loss: float) -> None:
        self.progress.validated(step, loss)
