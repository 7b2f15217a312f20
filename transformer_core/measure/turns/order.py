"""What the job of a comparison asks of the workers of a side."""

from pathlib import Path
from typing import Literal

from transformer_core.run.order import TrainingOrder


class TurnsOrder(TrainingOrder):
    """To train whenever it is this side's turn."""

    kind = "turns"
    work = "transformer_core.measure.turns.worker"

    side: str
    """Its name in the comparison."""
    coordinator: Path
    """File that tells where the coordinator is, which gives the turns."""
    keeps: Literal["all", "state"] = "all"
    """What it keeps on its devices between its turns (predicted/sides_together.py)."""
    planted: float | None = None
    """Share by which its steps are slowed down; null where nothing is tested."""


class RaceOrder(TurnsOrder):
    """The same, and to tell between its turns how well it translates."""

    kind = "race"
    work = "transformer_core.measure.quality.worker"
