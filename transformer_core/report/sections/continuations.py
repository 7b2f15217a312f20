"""Continuations of texts of the test split."""

from collections import defaultdict
from typing import Any

from transformer_core.decide.study_results import StudyResults


def context(results: StudyResults) -> dict[str, Any]:
    """The variant that predicts the test split best, and the samples: variants by continuation, by
    way of sampling, by prompt and reference."""
    judged = {r.variant: r.evaluation.texts for r in results.ordered if r.evaluation.texts}
    best = min(judged, key=lambda name: judged[name].bits_per_byte, default=None)
    samples: Any = defaultdict(lambda: {"greedy": defaultdict(list), "drawn": defaultdict(list)})
    for result in results.ordered:
        for one in result.evaluation.continuations:
            sample = samples[one.prompt, one.reference]
            sample["greedy"][one.greedy].append(result.variant)
            sample["drawn"][one.drawn].append(result.variant)
    return {"predicts_best": best, "quality": judged[best] if best else None, "samples": samples}
