"""What the section on memory shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.results import (
    PARTS,
    Comparison,
    ForeignProcess,
    LargestBatchResult,
    MemoryResult,
    RankAnatomy,
)
from schemas.train import ChunkedLoss
from transformer_core.analysis.memory_formulas import Formula, formula
from transformer_core.report.inputs import Results
from transformer_core.report.memory_inputs import (
    Check,
    Memory,
    errors,
    label,
    read_memory,
    run_checks,
    schemes,
    telling,
    tensor_checks,
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A variant as the tables show it, by its first rank."""

    result: MemoryResult
    rank: RankAnatomy
    formula: Formula
    check: Check | None
    """The prediction against the fullest rank."""


@dataclass(frozen=True)
class Scheme:
    """The peaks of all devices of a way of dividing the work."""

    variant: str
    peaks: list[int]

    @property
    def imbalance(self) -> float:
        """The first device over the fullest other."""
        return self.peaks[0] / max(self.peaks[1:])


@dataclass(frozen=True)
class Cheaper:
    """A variant that trades time for memory, beside the baseline."""

    variant: str
    peak_bytes: int
    of_baseline: float | None
    comparison: Comparison | None
    certificate: str


def memory_context(results: Results) -> dict[str, Any]:
    """Everything that is known of the memory of the variants."""
    memory = read_memory(results)
    runs = run_checks(results, memory)
    return {
        "asked": results.study.memory is not None,
        "memory": memory,
        "measured": _measured(results, memory),
        "without": [result for result in memory.measured.values() if result.status != "ok"],
        "unpredicted": [p for p in memory.predicted.values() if p.status != "ok"],
        "tight": [p for p in memory.predicted.values() if p.fits is False],
        "detailed": {name: memory.ok[name] for name in telling(results, memory)},
        "schemes": [
            Scheme(name, [rank.peak_tensor_bytes for rank in result.ranks])
            for name, result in schemes(results, memory).items()
        ],
        "tensor_errors": errors(tensor_checks(memory)),
        "run_checks": runs,
        "run_errors": errors(runs),
        "cheaper": _cheaper(results, memory),
        "foreign": _foreign(memory),
        "searches": list(memory.largest.values()),
        "tried": _tried,
        "label": label,
    }


def memory_table(results: Results) -> list[Row]:
    """A row per variant and device: the parts at the peak, bytes per parameter, the prediction."""
    memory = read_memory(results)
    return [
        row for name, result in memory.measured.items() for row in _rows(results, memory, result)
    ]


def milestones_table(results: Results) -> list[Row]:
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


def largest_batch_table(results: Results) -> list[Row]:
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


def _rows(results: Results, memory: Memory, result: MemoryResult) -> list[Row]:
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


def _measured(results: Results, memory: Memory) -> list[Measured]:
    checks = {check.variant: check for check in reversed(tensor_checks(memory))}
    return [
        Measured(memory.ok[name], rank, formula(results.specs[name]), checks.get(name))
        for name, rank in memory.followed.items()
    ]


def _cheaper(results: Results, memory: Memory) -> list[Cheaper]:
    """The variants with checkpoints of activations, or a loss in chunks."""
    followed = memory.followed
    baseline = followed.get(results.study.baseline)
    return [
        Cheaper(
            variant=name,
            peak_bytes=rank.peak_tensor_bytes,
            of_baseline=rank.peak_tensor_bytes / baseline.peak_tensor_bytes if baseline else None,
            comparison=results.comparisons.get(name),
            certificate=results.certificates[name].status,
        )
        for name, rank in followed.items()
        if getattr(results.specs[name].model, "checkpoint", "none") != "none"
        or isinstance(results.specs[name].training.loss, ChunkedLoss)
    ]


def _foreign(memory: Memory) -> dict[str, list[ForeignProcess]]:
    """Other processes on the devices, by the variant during whose run they were seen."""
    return {name: result.foreign for name, result in memory.measured.items() if result.foreign}


def _tried(search: LargestBatchResult) -> str:
    """The confirmation of an answer: the last trials of its two sizes."""
    return ", ".join(
        f"{trial.pairs:,} {trial.status}" for trial in search.trials if trial.purpose != "search"
    )
