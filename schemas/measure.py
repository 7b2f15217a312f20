"""What is timed, and how often."""

from pydantic import Field

from schemas.base import Count, Schema


class Measurement(Schema):
    """The timed part of a run, the same for every repeat."""

    warmup_steps: int = Field(default=20, ge=0)
    """First steps, which are reported by themselves and not counted in the throughput."""
    window_steps: Count = 10
    """Steps between two synchronised clock readings: one sample of the throughput."""
