"""What the job of a short run asks of its workers."""

from pathlib import Path

from transformer_core.run.order import TrainingOrder


class ShortRunOrder(TrainingOrder):
    """To train a few steps with each of some seeds, and to keep what every step computed."""

    seeds: int = 1
    """Trainings; the first has the seed of the spec, each of the others the next one."""

    first_look: int = 0
    """Seeds after which the final losses are compared with the reference's; if they decide, no more
    are trained. 0 for none."""

    reference: Path | None = None
    """The reference's trajectory.json, where there is something to look at."""

    margin: float = 0.0
    """Margin of the final loss."""

    budget: float = 0.0
    """Seconds after which no further seed is begun, beyond those of the first look."""

    dropout: float = 0.0
    """Dropout of the timed run, whose places are looked at; 0 looks at none."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, short run"
