"""The progress of a training: a bar, and plain lines of a log."""

from transformer_core.common.progress import RunProgress
from transformer_core.training.observer import Observer


class Progress(Observer):
    """Shows the steps of a training, under a ``name``, on the process that must ``show`` them."""

    def __init__(self, name: str, steps: int, show: bool) -> None:
        self._shown = RunProgress(name, steps, show=show)

    def start(self, step: int) -> None:
        self._shown.start(step)

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        self._shown.step_done(tokens)

    def logged(self, step: int, loss: float) -> None:
        self._shown.logged(step, loss)

    def validated(self, step: int, loss: float) -> None:
        self._shown.validated(step, loss)

    def close(self) -> None:
        """The training is over."""
        self._shown.close()
