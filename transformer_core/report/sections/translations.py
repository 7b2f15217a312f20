"""The sampled translations."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from transformer_core.decide.study_results import StudyResults

FEWEST_BLEU = 5.0
"""Below this, matches are chance: such translations say nothing about the variants."""


@dataclass(frozen=True)
class Sample:
    """A sentence with the translations of all variants."""

    source: str
    reference: str
    hypotheses: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The variants that gave each translation."""


def context(results: StudyResults) -> dict[str, Any]:
    """The samples; none of models that have not learnt to translate."""
    by_bleu = max(results.ordered, key=lambda result: result.evaluation.bleu or 0.0)
    best = by_bleu.evaluation.bleu or 0.0
    return {
        "asked": results.study.evaluation.max_pairs > 0,
        "translates_best": by_bleu.variant,
        "samples": translations(results) if best >= FEWEST_BLEU else [],
        "best": best,
        "fewest": FEWEST_BLEU,
    }


def translations(results: StudyResults) -> list[Sample]:
    """The sampled test sentences; variants that agree on a translation stand together."""
    found: dict[tuple[str, str], Sample] = {}
    for result in results.ordered:
        for one in result.evaluation.samples:
            sample = found.setdefault(
                (one.source, one.reference), Sample(one.source, one.reference)
            )
            sample.hypotheses[one.hypothesis].append(result.variant)
    return list(found.values())
