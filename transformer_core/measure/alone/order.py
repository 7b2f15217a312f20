"""What the job of a timed run asks of its workers."""

from transformer_core.run.order import TrainingOrder


class TimedRunOrder(TrainingOrder):
    """To train from the first step to the last, and to time it."""

    kind = "timed_run"
    work = "transformer_core.measure.alone.worker"

    repeat: int
    """Number of the repeat, from 1."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, repeat {self.repeat}"
