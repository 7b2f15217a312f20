"""The verdict on dropout: whether every place drops what the study asks for, and nothing else.

Counts of dropped elements are binomial; a place fails where its count is so far off that chance
would explain it once in a million.
"""

import math
from collections.abc import Iterable, Sequence

from schemas.results import Deviation
from schemas.results.equivalence import Agreement, DropoutPlace

STANDARD_ERRORS = 5.0
"""Deviation of a share that is allowed, in standard errors."""
GRAIN = 0.004
"""Deviation of a share that is allowed besides: probabilities are rounded to 1/256 in some fused
kernels, and a few elements are taken for others."""
FACTOR = 0.03
"""Deviation of the factor of the kept that is allowed: the logits may have 8 significant bits."""


def judge_dropout(places: Sequence[DropoutPlace], dropout: float) -> list[Deviation]:
    """The place that is farthest off in each respect."""
    respects = (_shares, _factors, _evaluations, _agreements)
    found = [max(of(places, dropout), key=_excess, default=None) for of in respects]
    return [deviation for deviation in found if deviation is not None]


def _shares(places: Sequence[DropoutPlace], dropout: float) -> Iterable[Deviation]:
    for p in places:
        if p.of == 0:
            yield _deviation(1.0, 0.0, f"{p.place}: nothing came through")
            continue
        share = p.dropped / p.of
        bound = STANDARD_ERRORS * math.sqrt(dropout * (1 - dropout) / p.of) + GRAIN
        yield _deviation(abs(share - dropout), bound, f"{p.place}: {share:.3f} of it dropped")


def _factors(places: Sequence[DropoutPlace], dropout: float) -> Iterable[Deviation]:
    for p in places:
        if p.factor is not None:
            # An embedding is compared with what is dropped beside it, which has the same factor.
            expected = 1.0 if p.place.endswith("embedding") else 1 / (1 - dropout)
            apart = abs(p.factor / expected - 1)
            yield _deviation(apart, FACTOR, f"{p.place}: kept times {p.factor:.3f}")


def _evaluations(places: Sequence[DropoutPlace], _: float) -> Iterable[Deviation]:
    for p in places:
        count = p.dropped_in_evaluation
        yield _deviation(float(count), 0.0, f"{p.place}: {count} dropped in evaluation")


def _agreements(places: Sequence[DropoutPlace], dropout: float) -> Iterable[Deviation]:
    by_chance = dropout**2 + (1 - dropout) ** 2
    for p in places:
        between: dict[str, Agreement | None] = {
            "steps": p.steps,
            "rows": p.rows,
            "layers": p.layers,
            "ranks": p.ranks,
            "tokens": p.tokens,
            "elements": p.elements,
        }
        for name, agreement in between.items():
            if agreement is not None and agreement.of:
                # Alike everywhere is what is looked for; the half of that is proof enough.
                alike = agreement.same / agreement.of
                excess = (alike - by_chance) / (1 - by_chance)
                noise = STANDARD_ERRORS / math.sqrt(agreement.of * (1 - by_chance))
                yield _deviation(max(0.0, excess), max(0.5, noise), f"{p.place}: masks of {name}")


def _excess(deviation: Deviation) -> float:
    return deviation.measured / deviation.bound if deviation.bound else deviation.measured * 1e6


def _deviation(measured: float, bound: float, where: str) -> Deviation:
    return Deviation(quantity="dropout", measured=measured, bound=bound, where=where)
