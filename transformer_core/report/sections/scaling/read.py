"""What the table and the figures of links and projections share."""

from collections import defaultdict
from statistics import median

from schemas.results import ProjectedCurve, ProjectedStrategy, Projection

STRATEGIES = {
    "ddp": "DDP",
    "ddp_no_overlap": "DDP without overlap",
    "accumulation_sync": "accumulation, every micro-batch reduced",
    "accumulation_no_sync": "accumulation with no_sync",
    "fsdp": "FSDP",
    "central": "central",
}
"""Projected strategies in words."""


SHOWN_BUCKET_MB = 25.0
"""Bucket size of the strategies that are shown: DistributedDataParallel's own default."""


MOST_ERROR = 0.2
"""Strategies whose measured runs are farther off, in the median, have no curve."""


def errors(projection: Projection) -> dict[ProjectedStrategy, float]:
    """Median error, without its sign, of each strategy that was measured."""
    found: dict[ProjectedStrategy, list[float]] = defaultdict(list)
    for check in projection.checks:
        if check.strategy is not None and check.error is not None:
            found[check.strategy].append(abs(check.error))
    return {strategy: median(sizes) for strategy, sizes in found.items()}


def dropped(projection: Projection) -> dict[ProjectedStrategy, float]:
    """Strategies that are not drawn, with their error."""
    return {name: error for name, error in errors(projection).items() if error > MOST_ERROR}


def shown_curves(projection: Projection) -> list[ProjectedCurve]:
    """The curves of the strategies that were not found to be wrong, with one bucket size for those
    that have buckets."""
    wrong = dropped(projection)
    return [
        curve
        for curve in projection.curves
        if curve.bucket_mb in (None, SHOWN_BUCKET_MB) and curve.strategy not in wrong
    ]
