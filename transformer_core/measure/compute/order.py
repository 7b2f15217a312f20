"""What the job that times the work of one device asks of its workers."""

from schemas.config.projection import Projecting
from transformer_core.run.order import TrainingOrder

RESULT = "times.json"


class ComputeOrder(TrainingOrder):
    """To time the parts of some steps, side by side with the other devices of this host."""

    kind = "compute"
    work = "transformer_core.measure.compute.worker"

    shares: int
    """Devices of the whole run, whose hosts may be several: a worker gets its share of a global
    batch."""
    settings: Projecting
    """How many steps."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, compute times"
