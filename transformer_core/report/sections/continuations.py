"""Continuations of texts of the test split."""

from dataclasses import dataclass
from typing import Any

from transformer_core.decide.study_results import StudyResults


@dataclass(frozen=True)
class Sample:
    """The beginning of a text, and how variants go on."""

    prompt: str
    reference: str
    greedy: list[tuple[str, list[str]]]
    """Most probable continuation, and the variants that gave it."""
    drawn: list[tuple[str, list[str]]]
    """The same of tokens that were drawn."""


def context(results: StudyResults) -> dict[str, Any]:
    """The variant that predicts the test split best, and the samples."""
    judged = [result for result in results.ordered if result.evaluation.texts]
    best = min(judged, key=lambda result: _bits(result), default=None)
    return {
        "predicts_best": best.variant if best else None,
        "quality": best.evaluation.texts if best else None,
        "samples": continuations(results),
    }


def _bits(result: Any) -> float:
    return float(result.evaluation.texts.bits_per_byte)


def continuations(results: StudyResults) -> list[Sample]:
    """Every prompt once; variants that agree on a continuation stand together."""
    found: dict[tuple[str, str], Sample] = {}
    for result in results.ordered:
        for one in result.evaluation.continuations:
            key = one.prompt, one.reference
            sample = found.setdefault(key, Sample(*key, [], []))
            for kept, text in ((sample.greedy, one.greedy), (sample.drawn, one.drawn)):
                names = next((names for known, names in kept if known == text), None)
                if names is None:
                    kept.append((text, [result.variant]))
                else:
                    names.append(result.variant)
    return list(found.values())
