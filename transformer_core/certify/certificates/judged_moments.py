"""The verdict on what dropout does to loss and gradient: their means and spread over draws.

Means are compared by Welch's t test, spreads by an F test, each at a level at which healthy
variants fail once in a hundred thousand.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from schemas.results import Deviation
from schemas.results.equivalence import DeviationOf, DropoutMoments

LEVEL = 1e-5
"""Probability that a test fails by chance."""
ALLOWED = 0.002
"""Relative difference of means that is allowed besides: rounding to 8 significant bits."""
EQUAL_DRAWS = 2
"""Losses that may equal another one by chance, of a few dozen."""
SLOPE = 0.005
"""Allowed error of the slope: what bends the loss over so long a step, which grows with the square
of its length."""
SLOPE_ROUNDED = 0.1
"""The same where losses have 8 significant bits, and their small differences few of those."""


def judge_moments(
    mine: DropoutMoments, theirs: DropoutMoments, reduced: bool
) -> Iterator[Deviation]:
    """The deviations of a training's draws from those of its reference; ``reduced`` where it may
    compute with fewer bits than 32."""
    losses, expected = _finite(mine.losses), _finite(theirs.losses)
    yield _means("dropout_loss", losses, expected)
    yield _spreads(losses, expected)
    if len(mine.grad_norms) > 1 and len(theirs.grad_norms) > 1:
        yield _means("dropout_gradient", mine.grad_norms, theirs.grad_norms)
    again = len(losses) - len(set(losses))
    yield _deviation(
        "dropout_draws", float(again), EQUAL_DRAWS, f"of {len(losses)} draws, {again} twice"
    )
    if mine.slope is not None:
        bound = SLOPE_ROUNDED if reduced else SLOPE
        where = f"the loss changes {mine.slope:.3f} times as its gradient says"
        yield _deviation("dropout_slope", abs(mine.slope - 1), bound, where)


def _means(quantity: DeviationOf, mine: Sequence[float], theirs: Sequence[float]) -> Deviation:
    errors = [float(np.var(side, ddof=1)) / len(side) for side in (mine, theirs)]
    center = float(np.mean(theirs))
    apart = abs(float(np.mean(mine)) - center) / abs(center)
    allowed = ALLOWED
    if total := sum(errors):
        # Welch-Satterthwaite
        freedom = total**2 / sum(
            e**2 / (len(side) - 1) for e, side in zip(errors, (mine, theirs), strict=True)
        )
        allowed += float(stats.t.isf(LEVEL / 2, freedom)) * math.sqrt(total) / abs(center)
    return _deviation(quantity, apart, allowed, f"mean of {len(mine)} draws")


def _spreads(mine: Sequence[float], theirs: Sequence[float]) -> Deviation:
    ours, expected = (float(np.std(side, ddof=1)) for side in (mine, theirs))
    bound = math.sqrt(stats.f.isf(LEVEL / 2, len(mine) - 1, len(theirs) - 1)) - 1
    low, high = sorted((ours, expected))
    factor = high / low if low else 1e9
    where = f"standard deviation {ours:.1e}, that of the reference {expected:.1e}"
    return _deviation("dropout_spread", factor - 1, bound, where)


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _deviation(quantity: DeviationOf, measured: float, bound: float, where: str) -> Deviation:
    return Deviation(quantity=quantity, measured=measured, bound=bound, where=where)
