"""Continuations of texts of the test split."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from transformer_core.decide.study_results import StudyResults

ByText = defaultdict[str, list[str]]  # the variants that gave each text


@dataclass(frozen=True)
class Sample:
    """The beginning of a text, and how variants go on: with the most probable tokens, and drawn."""

    prompt: str
    reference: str
    greedy: ByText = field(default_factory=lambda: defaultdict(list))
    drawn: ByText = field(default_factory=lambda: defaultdict(list))


def context(results: StudyResults) -> dict[str, Any]:
    """The variant that predicts the test split best, and the samples."""
    judged = {r.variant: r.evaluation.texts for r in results.ordered if r.evaluation.texts}
    best = min(judged, key=lambda name: judged[name].bits_per_byte, default=None)
    return {
        "predicts_best": best,
        "quality": judged[best] if best else None,
        "samples": continuations(results),
    }


def continuations(results: StudyResults) -> list[Sample]:
    """Every prompt once; variants that agree on a continuation stand together."""
    found: dict[tuple[str, str], Sample] = {}
    for result in results.ordered:
        for one in result.evaluation.continuations:
            key = one.prompt, one.reference
            sample = found.setdefault(key, Sample(*key))
            sample.greedy[one.greedy].append(result.variant)
            sample.drawn[one.drawn].append(result.variant)
    return list(found.values())
