"""The verdict on dropout: whether every place drops the requested share, and nothing else.

Counts of dropped elements are binomial; a place fails if chance would explain its count only once
in a million. The effects of dropout on loss and gradient are compared over draws: their means by
Welch's t test and their spreads by an F test, each at a level at which a correct variant fails once
in a hundred thousand times.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import special

from schemas.results import Deviation
from schemas.results.certificates import Agreement, DeviationOf, DropoutMoments, DropoutPlace

STANDARD_ERRORS = 5.0
"""Allowed deviation of a share, in standard errors."""
GRAIN = 0.004
"""Additional allowed deviation of a share: some fused kernels round probabilities to 1/256, and
a few elements are misclassified."""
FACTOR = 0.03
"""Allowed deviation of the scale factor: the logits may have only 8 significant bits."""


def judge_dropout(places: Sequence[DropoutPlace], dropout: float) -> list[Deviation]:
    """For each property of dropout, the place that deviates most."""
    respects = (_shares, _factors, _evaluations, _agreements)
    found = [max(of(places, dropout), key=_excess, default=None) for of in respects]
    return [deviation for deviation in found if deviation is not None]


def _shares(places: Sequence[DropoutPlace], dropout: float) -> Iterable[Deviation]:
    for p in places:
        if p.of == 0:
            yield deviation("dropout", 1.0, 0.0, f"{p.place}: nothing passed")
            continue
        share = p.dropped / p.of
        bound = STANDARD_ERRORS * math.sqrt(dropout * (1 - dropout) / p.of) + GRAIN
        yield deviation("dropout", abs(share - dropout), bound, f"{p.place}: {share:.3f} dropped")


def _factors(places: Sequence[DropoutPlace], dropout: float) -> Iterable[Deviation]:
    for p in places:
        if p.factor is not None:
            # An embedding is measured relative to an output with the same factor.
            expected = 1.0 if p.place.endswith("embedding") else 1 / (1 - dropout)
            where = f"{p.place}: kept elements scaled by {p.factor:.3f}"
            yield deviation("dropout", abs(p.factor / expected - 1), FACTOR, where)


def _evaluations(places: Sequence[DropoutPlace], _: float) -> Iterable[Deviation]:
    for p in places:
        if (count := p.dropped_in_evaluation) is not None:
            where = f"{p.place}: {count} dropped in evaluation"
            yield deviation("dropout", float(count), 0.0, where)


def _agreements(places: Sequence[DropoutPlace], dropout: float) -> Iterable[Deviation]:
    by_chance = dropout**2 + (1 - dropout) ** 2
    for p in places:
        for name in ("steps", "rows", "layers", "ranks", "tokens", "elements"):
            agreement: Agreement | None = getattr(p, name)
            if agreement is not None and agreement.of:
                # A fault makes all masks identical; half of that excess is proof enough.
                alike = agreement.same / agreement.of
                excess = max(0.0, (alike - by_chance) / (1 - by_chance))
                noise = STANDARD_ERRORS / math.sqrt(agreement.of * (1 - by_chance))
                yield deviation("dropout", excess, max(0.5, noise), f"{p.place}: masks of {name}")


def _excess(found: Deviation) -> float:
    return found.measured / found.bound if found.bound else found.measured * 1e6


LEVEL = 1e-5
"""Probability of a false failure per test."""
ALLOWED = 0.002
"""Additional allowed relative difference of means: rounding to 8 significant bits."""
EQUAL_DRAWS = 2
"""Number of losses, among a few dozen, that may equal another by chance."""
NO_DROPOUT = 1e-5
"""Spread of the losses of a model without dropout, relative to their mean, at most: 32-bit rounding."""
SLOPE = 0.005
"""Allowed error of the slope: the loss is curved over a step of this length. The error grows with
the square of the length."""
SLOPE_ROUNDED = 0.1
"""The same for losses with 8 significant bits, few of which remain in small differences."""


def judge_moments(
    mine: DropoutMoments, theirs: DropoutMoments, reduced: bool
) -> Iterator[Deviation]:
    """Deviations of a training's draws from those of its reference. ``reduced``: the training may
    compute with fewer than 32 bits."""
    losses, expected = _finite(mine.losses), _finite(theirs.losses)
    yield _means("dropout_loss", losses, expected)
    if theirs.optional and _relative_spread(expected) < NO_DROPOUT:
        where = "the reference has no dropout"
        yield deviation("dropout_spread", _relative_spread(losses), ALLOWED, where)
    else:
        yield _spreads(losses, expected)
        again = len(losses) - len(set(losses))
        repeated = f"{again} of {len(losses)} draws repeated"
        yield deviation("dropout_draws", float(again), EQUAL_DRAWS, repeated)
    if len(mine.grad_norms) > 1 and len(theirs.grad_norms) > 1:
        yield _means("dropout_gradient", mine.grad_norms, theirs.grad_norms)
    if mine.slope is not None:
        bound = SLOPE_ROUNDED if reduced else SLOPE
        # A user's model may stop gradients on purpose.
        right = 1.0 if not theirs.optional or theirs.slope is None else theirs.slope
        where = f"the loss changes {mine.slope:.3f} times as much as its gradient says"
        yield deviation("dropout_slope", abs(mine.slope - right), bound, where)


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
        # As scipy.stats.t.isf, whose module takes half a second to import.
        quantile = -float(special.stdtrit(freedom, LEVEL / 2))
        allowed += quantile * math.sqrt(total) / abs(center)
    return deviation(quantity, apart, allowed, f"mean of {len(mine)} draws")


def _spreads(mine: Sequence[float], theirs: Sequence[float]) -> Deviation:
    ours, expected = (float(np.std(side, ddof=1)) for side in (mine, theirs))
    bound = math.sqrt(special.fdtri(len(mine) - 1, len(theirs) - 1, 1 - LEVEL / 2)) - 1
    low, high = sorted((ours, expected))
    factor = high / low if low else 1e9
    where = f"standard deviation {ours:.1e}, that of the reference {expected:.1e}"
    return deviation("dropout_spread", factor - 1, bound, where)


def _relative_spread(losses: Sequence[float]) -> float:
    return float(np.std(losses)) / abs(float(np.mean(losses)))


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def deviation(
    quantity: DeviationOf, measured: float, bound: float, where: str, floor: float = 0.0
) -> Deviation:
    """A deviation, whose ``measured`` is 1e300 if it is not finite."""
    measured = measured if math.isfinite(measured) else 1e300
    return Deviation(quantity=quantity, measured=measured, bound=bound, where=where, floor=floor)
