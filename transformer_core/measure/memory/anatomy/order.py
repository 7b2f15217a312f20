"""What the job that measures memory asks of its workers."""

from transformer_core.run.order import TrainingOrder


class AnatomyOrder(TrainingOrder):
    """To train a few steps on the heaviest batch, and to follow their memory."""

    kind = "anatomy"
    work = "transformer_core.measure.memory.anatomy.worker"

    steps: int

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, memory"


def rank_file(rank: int | str) -> str:
    """What a rank leaves beside the result."""
    return f"rank-{rank}.json"
