"""The sampled translations."""

from collections import defaultdict
from typing import Any

from transformer_core.decide.study_results import StudyResults

FEWEST_BLEU = 5.0
"""Below this BLEU, matches are chance, and translations say nothing about the variants."""

ByText = defaultdict[str, list[str]]  # the variants that gave each text


def context(results: StudyResults) -> dict[str, Any]:
    """The samples, unless no model has learnt to translate."""
    by_bleu = max(results.ordered, key=lambda result: result.evaluation.bleu or 0.0)
    best = by_bleu.evaluation.bleu or 0.0
    return {
        "asked": results.study.evaluation.max_pairs > 0,
        "translates_best": by_bleu.variant,
        "samples": translations(results) if best >= FEWEST_BLEU else {},
        "best": best,
        "fewest": FEWEST_BLEU,
    }


def translations(results: StudyResults) -> dict[tuple[str, str], ByText]:
    """Variants by translation, by source and reference."""
    found: defaultdict[tuple[str, str], ByText] = defaultdict(lambda: defaultdict(list))
    for result in results.ordered:
        for one in result.evaluation.samples:
            found[one.source, one.reference][one.hypothesis].append(result.variant)
    return found
