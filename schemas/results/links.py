"""The emulated link against the real one: results/links/."""

from schemas.base import Schema
from schemas.results.common import Elapsed, Measured, PerSecond, Status


class LinkTrial(Schema):
    """One configuration, over both links."""

    name: str
    """Name of the change to DistributedDataParallel."""
    bandwidth: PerSecond
    """Bits per second."""
    status: Status
    """Whether both could be timed."""
    reason: str | None
    """Why they could not."""
    real_seconds: Elapsed | None
    """Median time of a step over the real link."""
    emulated_seconds: Elapsed | None
    """Median time of a step over the emulated link."""
    error: Measured | None
    """Time over the emulated link, relative to that over the real one, less 1: from the ratios of
    windows that lie next to each other."""


class LinkError(Schema):
    """results/links/error.json: how far the emulated link is from the real one."""

    trials: list[LinkTrial]
    """Every configuration; nothing of the model was fitted to any of them."""
    median_error: Measured | None
    """Median of the errors without their sign; null where none was measured."""
    worst_error: Measured | None
    """Largest error without its sign."""
