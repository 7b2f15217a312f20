"""The emulated link against the real one: results/links/."""

from schemas.base import Schema
from schemas.results.common import Elapsed, Measured, PerSecond, Status


class LinkTrial(Schema):
    """One configuration, run over both links."""

    name: str
    """Name of the change to DistributedDataParallel."""
    bandwidth: PerSecond
    """Bits per second."""
    status: Status
    """Whether both could be timed."""
    reason: str | None
    """Why they could not be timed."""
    real_seconds: Elapsed | None
    """Median time of a step over the real link."""
    emulated_seconds: Elapsed | None
    """Median time of a step over the emulated link."""
    error: Measured | None
    """Time over the emulated link relative to the real one, minus 1, from the ratios of adjacent
    windows."""


class LinkError(Schema):
    """results/links/error.json: how far the emulated link is from the real one."""

    trials: list[LinkTrial]
    """All configurations; no model parameter was fitted to any of them."""
    median_error: Measured | None
    """Median absolute error; null if none was measured."""
    worst_error: Measured | None
    """Largest absolute error."""
