"""What the records of several rooms share."""

from typing import Literal

from schemas.base import Schema

Status = Literal["ok", "oom", "diverged", "unsupported", "failed"]


class Interval(Schema):
    """A median and its 95 % interval."""

    median: float
    """The median."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    samples: int
    """How many values it comes from."""
