"""What the section on memory shows."""

from dataclasses import dataclass
from typing import Any

from schemas.config.training import ChunkedLoss
from schemas.results import (
    Comparison,
    ForeignProcess,
    LargestBatchResult,
    MemoryResult,
    RankAnatomy,
)
from transformer_core.decide.bytes_per_parameter import Formula, formula
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.memory.read import (
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


def context(results: StudyResults) -> dict[str, Any]:
    """Everything that is known of the memory of the variants."""
    memory = read_memory(results)
    runs = run_checks(results, memory)
    measured = sorted(_measured(results, memory), key=lambda one: one.rank.peak_tensor_bytes)
    return {
        "fullest": measured[-1] if measured else None,
        "leanest": measured[0] if measured else None,
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


def _measured(results: StudyResults, memory: Memory) -> list[Measured]:
    checks = {check.variant: check for check in reversed(tensor_checks(memory))}
    return [
        Measured(memory.ok[name], rank, formula(results.specs[name]), checks.get(name))
        for name, rank in memory.followed.items()
    ]


def _cheaper(results: StudyResults, memory: Memory) -> list[Cheaper]:
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
