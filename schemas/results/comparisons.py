"""One variant against another: results/comparisons.json."""

from pydantic import Field

from schemas.base import Schema
from schemas.results.common import Interval
from schemas.results.equivalence import CertificateStatus


class Comparison(Schema):
    """A variant against the baseline."""

    variant: str
    """Name of the variant."""
    baseline: str
    """Name of the baseline."""
    speedup: Interval | None
    """Ratio of the throughputs, variant over baseline; null if either is not ok."""
    certificate: CertificateStatus
    """Whether the variant trains the same model as the reference."""
    counts: bool
    """Whether the ratio is a speed-up of the same training: both have their certificates."""
    note: str = Field(default="")
    """What a reader must know (waits for input, only one repeat, ...)."""
