"""Memory: measured, predicted, its parts, the largest batch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from schemas.results import (
    LargestBatchResult,
    MemoryResult,
    PredictedRank,
    Prediction,
    RankAnatomy,
)
from transformer_core.decide.bytes_per_parameter import Formula, formula
from transformer_core.decide.study_results import StudyResults

_SCHEMES = ("data_parallel", "central", "ddp", "fsdp")


@dataclass(frozen=True)
class Memory:
    """All of it; mappings over variants are in the order of the study."""

    measured: dict[str, MemoryResult] = field(default_factory=dict)
    predicted: dict[str, Prediction] = field(default_factory=dict)
    largest: dict[str, LargestBatchResult] = field(default_factory=dict)

    @property
    def ok(self) -> dict[str, MemoryResult]:
        """The variants whose memory was measured."""
        return {name: found for name, found in self.measured.items() if found.status == "ok"}

    @property
    def followed(self) -> dict[str, RankAnatomy]:
        """Their first ranks, where these could be taken apart."""
        return {
            name: found.ranks[0]
            for name, found in self.ok.items()
            if found.ranks and found.ranks[0].anatomy is not None
        }

    def expected(self, variant: str) -> list[PredictedRank]:
        """The prediction: for the first rank, and for the others where they do other work."""
        prediction = self.predicted.get(variant)
        return [] if prediction is None else prediction.ranks


@dataclass(frozen=True)
class Check:
    """A predicted peak beside a measured one."""

    variant: str
    place: str  # which rank or device
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """By which share of the measured peak the prediction is too high."""
        return self.predicted / self.measured - 1


def read_memory(results: StudyResults) -> Memory:
    """The settings of the study."""
    predicted = results.predicted_memory
    return Memory(
        measured=results.memory,
        predicted={p.variant: p for p in predicted.predictions} if predicted else {},
        largest=results.largest_batches,
    )


def label(result: MemoryResult, rank: RankAnatomy) -> str:
    """A rank, or a device where one process drives several."""
    several = len({each.rank for each in result.ranks}) < len(result.ranks)
    return rank.device if several else f"rank {rank.rank}"


def tensor_checks(memory: Memory) -> list[Check]:
    """Peaks of tensors in a training step, predicted and measured; see :func:`_checks`."""
    found = []
    for name, result in memory.ok.items():
        measured = {label(result, rank): rank.peak_tensor_bytes for rank in result.ranks}
        expected = [rank.training_bytes for rank in memory.expected(name)]
        found += _checks(name, expected, measured)
    return found


def run_checks(results: StudyResults, memory: Memory) -> list[Check]:
    """The same of every timed run: of the whole process on a CPU, of the tensors on a GPU."""
    found = []
    for name, result in results.variants.items():
        for repeat in result.repeats:
            cuda = any(rank.device.startswith("cuda") for rank in repeat.memory)
            # Bytes that a process takes before its first tensor, if measured.
            prediction = memory.predicted.get(name)
            before = 0 if cuda else (prediction.context_bytes if prediction else None)
            if before is None:
                continue
            used = {
                f"rank {rank.rank}": rank.allocated_bytes if cuda else rank.rss_bytes
                for rank in repeat.memory
            }
            measured = {place: count for place, count in used.items() if count}
            expected = [before + rank.peak_bytes for rank in memory.expected(name)]
            found += [
                replace(check, place=f"repeat {repeat.repeat}, {check.place}")
                for check in _checks(name, expected, measured)
            ]
    return found


def _checks(variant: str, expected: Sequence[int], measured: Mapping[str, int]) -> list[Check]:
    """Where ranks do other work than the first, each against its own prediction; else the fullest,
    for which the prediction is made: the others get smaller shares of a batch."""
    if not expected or not measured:
        return []
    if len(expected) == 1:
        place, most = max(measured.items(), key=lambda item: item[1])
        return [
            Check(variant, place if len(measured) == 1 else f"fullest, {place}", expected[0], most)
        ]
    return [
        Check(variant, place, expected[min(number, len(expected) - 1)], used)
        for number, (place, used) in enumerate(measured.items())
    ]


def errors(checks: Iterable[Check]) -> tuple[float, float] | None:
    """Median and largest error of predictions, without their sign; None without a prediction."""
    sizes = [abs(check.error) for check in checks]
    return (median(sizes), max(sizes)) if sizes else None


def telling(results: StudyResults, memory: Memory) -> list[str]:
    """The variants that are shown in detail: the baseline, and the first on several devices."""
    followed = memory.followed
    names = [name for name in (results.study.baseline,) if name in followed]
    several = [name for name in followed if results.specs[name].world_size > 1]
    kinds = {results.specs[name].parallel.kind: name for name in reversed(several)}
    first = next((kinds[kind] for kind in ("ddp", "fsdp", "central") if kind in kinds), None)
    return [*names, *([first] if first is not None else [])]


def schemes(results: StudyResults, memory: Memory) -> dict[str, MemoryResult]:
    """A variant of each way of dividing the work over several devices, in the study's order of
    telling: DataParallel, with the loss in forward, DistributedDataParallel, FSDP."""
    found: dict[tuple[str, bool], str] = {}
    for name, result in memory.ok.items():
        parallel = results.specs[name].parallel
        if len(result.ranks) > 1:
            found.setdefault((parallel.kind, getattr(parallel, "local_loss", False)), name)
    return {
        found[kind, local]: memory.ok[found[kind, local]]
        for kind in _SCHEMES
        for local in (False, True)
        if (kind, local) in found
    }


@dataclass(frozen=True)
class Measured:
    """A variant as the tables show it, by its first rank."""

    result: MemoryResult
    rank: RankAnatomy
    formula: Formula
    check: Check | None  # the prediction against the fullest rank


@dataclass(frozen=True)
class Scheme:
    """The peaks of all devices of a way of dividing the work."""

    variant: str
    peaks: list[int]

    @property
    def imbalance(self) -> float:
        """The first device over the fullest other."""
        return self.peaks[0] / max(self.peaks[1:])


def context(results: StudyResults) -> dict[str, Any]:
    """All data on the memory of the variants."""
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
        "foreign": {name: r.foreign for name, r in memory.measured.items() if r.foreign},
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


def _cheaper(results: StudyResults, memory: Memory) -> list[dict[str, Any]]:
    """Variants that trade time for memory, beside the baseline: with checkpoints of activations, or
    a loss in chunks."""
    followed = memory.followed
    baseline = followed.get(results.study.baseline)
    return [
        {
            "variant": name,
            "peak_bytes": rank.peak_tensor_bytes,
            "of_baseline": baseline and rank.peak_tensor_bytes / baseline.peak_tensor_bytes,
            "comparison": results.comparisons.get(name),
            "certificate": results.certificates[name].status,
        }
        for name, rank in followed.items()
        if getattr(results.specs[name].model, "checkpoint", "none") != "none"
        or results.specs[name].training.loss.computed_twice
    ]


def _tried(search: LargestBatchResult) -> str:
    """The confirmation of an answer: the last trials of its two sizes."""
    return ", ".join(
        f"{trial.pairs:,} {trial.status}" for trial in search.trials if trial.purpose != "search"
    )
