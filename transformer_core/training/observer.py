"""Observers of a training: a clock, a profiler, a progress bar, one beside the other."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformer_core.common.progress import RunProgress

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


def _each(name: str) -> Callable[..., None]:
    """The method ``name`` of a group: that of each observer, one after the other."""

    def method(self: "Observers", *arguments: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*arguments)

    return method


class Observers(Observer):
    """Several observers of one training, called in order. Their states are merged, so each uses its
    own names."""

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
    """Shows the steps and losses of a training: a bar, or plain lines of a log."""

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
