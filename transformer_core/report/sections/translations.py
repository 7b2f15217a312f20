"""The sampled translations."""

from dataclasses import dataclass
from typing import Any

from schemas.results import Translation
from transformer_core.decide.study_results import StudyResults

FEWEST_BLEU = 5.0
"""Below this, matches are chance: such translations say nothing about the variants."""


@dataclass(frozen=True)
class Sample:
    """A sentence with the translations of all variants."""

    source: str
    reference: str
    hypotheses: list[tuple[str, list[str]]]
    """Translation, and the variants that gave it."""


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
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for result in results.ordered:
        for sample in result.evaluation.samples:
            by_text = found.setdefault(_key(sample), {})
            by_text.setdefault(sample.hypothesis, []).append(result.variant)
    return [
        Sample(source, reference, list(by_text.items()))
        for (source, reference), by_text in found.items()
    ]


def _key(sample: Translation) -> tuple[str, str]:
    return sample.source, sample.reference
