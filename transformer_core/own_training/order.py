"""Orders of the job to the workers of a user's training."""

from transformer_core.measure.sessions import TurnsOrder
from transformer_core.run.order import Order


class OwnShortOrder(Order):
    """A short training for a certificate, with several seeds one after the other."""

    work = "transformer_core.own_training.short_worker"

    seeds: int = 1
    """Trainings."""
    wide: bool = False
    """Whether it computes in 64 bits."""


class OwnProfileOrder(Order):
    """To record a few warmed-up steps."""

    work = "transformer_core.own_training.profiled.worker"

    warmup_steps: int
    """Steps before those that are recorded."""
    steps: int
    """Steps that are recorded."""


class OwnTurnsOrder(TurnsOrder):
    """To train the user's model whenever it is this side's turn."""

    work = "transformer_core.own_training.timed_worker"
