"""The tables of memory."""

from schemas.results import PARTS, MemoryResult, RankAnatomy
from transformer_core.decide.bytes_per_parameter import formula
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row
from transformer_core.report.sections.memory.read import Memory, read_memory


def memory(results: StudyResults) -> list[Row]:
    """A row per variant and device: the parts at the peak, bytes per parameter, the prediction."""
    found = read_memory(results)
    return [row for name, result in found.measured.items() for row in _rows(results, found, result)]


def memory_milestones(results: StudyResults) -> list[Row]:
    """A row per variant, device and milestone."""
    return [
        {
            "variant": result.variant,
            "rank": rank.rank,
            "device": rank.device,
            "milestone": milestone.name,
            **milestone.model_dump(exclude={"name"}),
        }
        for result in read_memory(results).ok.values()
        for rank in result.ranks
        for milestone in rank.milestones
    ]


def largest_batch(results: StudyResults) -> list[Row]:
    """A row per trial of a batch size."""
    return [
        {
            "variant": search.variant,
            "limit_kind": search.limit_kind,
            "limit_bytes": search.limit_bytes,
            "margin": search.margin,
            "largest_pairs": search.largest_pairs,
            "largest_tokens": search.largest_tokens,
            "step_pairs": search.step_pairs,
            "confirmed": search.confirmed,
            **trial.model_dump(),
        }
        for search in read_memory(results).largest.values()
        for trial in search.trials
    ]


def _rows(results: StudyResults, memory: Memory, result: MemoryResult) -> list[Row]:
    """The rows of a variant; one without a number where nothing was measured."""
    ranks: list[RankAnatomy | None] = [*result.ranks] or [None]
    by_formula = formula(results.specs[result.variant])
    rows: list[Row] = []
    for place, rank in enumerate(ranks):
        at_peak = rank.at_peak if rank else None
        per_parameter = rank.bytes_per_parameter if rank else None
        ranks_expected = memory.expected(result.variant)
        expected = ranks_expected[min(place, len(ranks_expected) - 1)] if ranks_expected else None
        rows.append(
            {
                "variant": result.variant,
                "status": result.status,
                "reason": result.reason,
                "rank": rank.rank if rank else None,
                "device": rank.device if rank else None,
                "parameters": result.parameters,
                **{part: getattr(at_peak, part) if at_peak else None for part in PARTS},
                "residual_bytes": rank.residual_bytes if rank else None,
                "peak_tensor_bytes": rank.peak_tensor_bytes if rank else None,
                "model_state_per_parameter": per_parameter.model_state if per_parameter else None,
                "buckets_per_parameter": per_parameter.buckets if per_parameter else None,
                "formula_model_state_per_parameter": by_formula.model_state if place == 0 else None,
                "formula_buckets_per_parameter": by_formula.buckets if place == 0 else None,
                "predicted_tensor_bytes": expected.training_bytes if expected else None,
            }
        )
    return rows
