"""What the job asks of the workers of a user's training."""

from transformer_core.run.order import Order


class OwnShortOrder(Order):
    """A short training for a certificate, with several seeds one after the other."""

    seeds: int = 1
    """Trainings."""
    wide: bool = False
    """Whether it computes in 64 bits."""


class OwnProfileOrder(Order):
    """To record a few warmed-up steps."""

    warmup_steps: int
    """Steps before those that are recorded."""
    steps: int
    """Steps that are recorded."""
