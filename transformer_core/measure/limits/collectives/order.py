"""What the job that measures collective operations asks of its workers."""

from pathlib import Path

from schemas.config.profiling import Limits
from transformer_core.run.order import Order


class CollectivesOrder(Order):
    """To time collective operations between the processes of a run."""

    kind = "collectives"
    work = "transformer_core.measure.limits.collectives.worker"

    limits: Limits
    """Sizes and time."""
    table: Path
    """File of the result."""

    @property
    def title(self) -> str:
        return "collectives"
