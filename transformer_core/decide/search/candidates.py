"""Which combinations enter a search: those whose single effects promise most."""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import exp, log
from typing import Literal

from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Comparison
from transformer_core.decide.search.trials import Trial
from transformer_core.study.combinations import candidates, combine, fitting
from transformer_core.study.resolve import lineage

_MOST_PARTS = 16
"""Parts that combinations are made of: those that promise most. Their subsets can be counted."""


def eligible(study: Study, certificates: Mapping[str, Certificate]) -> list[str]:
    """The variants that may be part of a combination: all that train the same model."""
    return [
        name
        for name in study.variants
        if name != study.baseline and certificates[name].status == "equivalent"
    ]


def own_effects(
    study: Study,
    variants: Mapping[str, Variant],
    comparisons: Sequence[Comparison],
    end: Literal["median", "high"] = "median",
) -> dict[str, float]:
    """Logarithm of what each variant's own change does to the throughput, as far as measured: the
    estimate, or the upper ``end`` of its interval.

    The effect of a variant without that of its parent; 0 where one of them was not measured. A
    variant without a parent changes the study itself, which is what the oldest ancestor of the
    baseline runs.
    """
    found = {
        comparison.variant: comparison.speedup
        for comparison in comparisons
        if comparison.reference == study.baseline and comparison.speedup
    }
    measured = {name: log(ratio.median) for name, ratio in found.items()} | {study.baseline: 0.0}
    asked = {name: log(getattr(ratio, end)) for name, ratio in found.items()}
    asked[study.baseline] = 0.0
    origin = lineage(study.baseline, variants)[0]
    return {
        name: asked[name] - measured[parent]
        for name in study.variants
        if (parent := variants[name].parent or origin) in measured and name in measured
    }


def shortlist(
    study: Study,
    variants: Mapping[str, Variant],
    parts: Sequence[str],
    effects: Mapping[str, float],
) -> tuple[list[Trial], int]:
    """The combinations that the first round measures, and how many fit together.

    Those whose parts' effects promise most; of two with the same promise, the simpler one.
    """
    assert study.search is not None, "somebody asked for a search"
    known = [(combine(study, variants, (part,), "candidate"), part) for part in parts]
    baseline = combine(study, variants, (), "candidate")
    # One that says what the baseline does anyway would stand in every combination.
    useful = [part for spec, part in known if spec != baseline]
    most = sorted(useful, key=lambda part: -effects.get(part, 0.0))[:_MOST_PARTS]
    found = [
        (-sum(effects.get(part, 0.0) for part in chosen), len(chosen), chosen)
        for chosen in fitting(
            variants, [part for part in useful if part in most], study.search.largest
        )
    ]
    found.sort()
    ranked = candidates(study, variants, (chosen for _, _, chosen in found))
    return [
        Trial(chosen, spec, exp(sum(effects.get(part, 0.0) for part in chosen)))
        for chosen, spec in islice(ranked, study.search.candidates)
    ], len(found)
