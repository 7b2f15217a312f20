"""Memory: measured and predicted, by part, and the largest batch."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from schemas.results import (
    LargestBatchResult,
    MemoryResult,
    PredictedRank,
    Prediction,
    RankAnatomy,
)
from schemas.results.common import BASELINE, BEST
from transformer_core.decide.bytes_per_parameter import Formula, formula
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.answer import choose

_SCHEMES = ("data_parallel", "central", "ddp", "fsdp")


def measured(results: StudyResults) -> dict[str, MemoryResult]:
    """The variants whose memory was measured."""
    return {name: found for name, found in results.memory.items() if found.status == "ok"}


def followed(results: StudyResults) -> dict[str, RankAnatomy]:
    """The first ranks of variants whose memory was measured by part."""
    return {
        name: found.ranks[0]
        for name, found in measured(results).items()
        if found.ranks and found.ranks[0].anatomy is not None
    }


def predictions(results: StudyResults) -> dict[str, Prediction]:
    found = results.predicted_memory
    return {p.variant: p for p in found.predictions} if found else {}


def expected(results: StudyResults, variant: str) -> list[PredictedRank]:
    """The predictions for the first rank, and for the others if they do different work."""
    found = predictions(results).get(variant)
    return [] if found is None else found.ranks


class Check(NamedTuple):
    """A predicted and a measured peak."""

    variant: str
    place: str  # which rank or device
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """The excess of the prediction, as a share of the measured peak."""
        return self.predicted / self.measured - 1


def label(result: MemoryResult, rank: RankAnatomy) -> str:
    """Name of a rank, or of a device if one process drives several."""
    several = len({each.rank for each in result.ranks}) < len(result.ranks)
    return rank.device if several else f"rank {rank.rank}"


def tensor_checks(results: StudyResults) -> list[Check]:
    """Peaks of tensors in a training step, predicted and measured; see :func:`_checks`."""
    found = []
    for name, result in measured(results).items():
        used = {label(result, rank): rank.peak_tensor_bytes for rank in result.ranks}
        found += _checks(name, [rank.training_bytes for rank in expected(results, name)], used)
    return found


def run_checks(results: StudyResults) -> list[Check]:
    """The same for every timed run: for the whole process on a CPU, for the tensors on a GPU."""
    found = []
    for name, result in results.variants.items():
        for repeat in result.repeats:
            cuda = any(rank.device.startswith("cuda") for rank in repeat.memory)
            # Bytes of a process before its first tensor, if measured.
            prediction = predictions(results).get(name)
            before = 0 if cuda else (prediction.context_bytes if prediction else None)
            if before is None:
                continue
            used = {
                f"rank {rank.rank}": rank.allocated_bytes if cuda else rank.rss_bytes
                for rank in repeat.memory
            }
            known = {place: count for place, count in used.items() if count}
            peaks = [before + rank.peak_bytes for rank in expected(results, name)]
            found += [
                check._replace(place=f"repeat {repeat.repeat}, {check.place}")
                for check in _checks(name, peaks, known)
            ]
    return found


def _checks(variant: str, peaks: Sequence[int], used: Mapping[str, int]) -> list[Check]:
    """Each rank against its own prediction, if ranks do different work; otherwise only the fullest,
    because the prediction is for the rank with the largest share of a batch."""
    if not peaks or not used:
        return []
    if len(peaks) == 1:
        place, most = max(used.items(), key=lambda item: item[1])
        return [Check(variant, place if len(used) == 1 else f"fullest, {place}", peaks[0], most)]
    return [
        Check(variant, place, peaks[min(number, len(peaks) - 1)], most)
        for number, (place, most) in enumerate(used.items())
    ]


def errors(checks: Iterable[Check]) -> tuple[float, float] | None:
    """Median and largest absolute error of predictions; None without predictions."""
    sizes = [abs(check.error) for check in checks]
    return (median(sizes), max(sizes)) if sizes else None


def telling(results: StudyResults) -> list[str]:
    """The variants that are shown in detail: the baseline, and the first on several devices."""
    found = followed(results)
    names = [name for name in (results.study.baseline,) if name in found]
    several = [name for name in found if results.specs[name].world_size > 1]
    kinds = {results.specs[name].parallel.kind: name for name in reversed(several)}
    first = next((kinds[kind] for kind in ("ddp", "fsdp", "central") if kind in kinds), None)
    return [*names, *([first] if first is not None else [])]


def schemes(results: StudyResults) -> dict[str, MemoryResult]:
    """One variant for each way of dividing the work over several devices: DataParallel, the same
    with a local loss, DistributedDataParallel, FSDP."""
    found: dict[tuple[str, bool], str] = {}
    for name, result in measured(results).items():
        parallel = results.specs[name].parallel
        if len(result.ranks) > 1:
            found.setdefault((parallel.kind, getattr(parallel, "local_loss", False)), name)
    ways = [(kind, local) for kind in _SCHEMES for local in (False, True)]
    return {found[way]: results.memory[found[way]] for way in ways if way in found}


def of_recommendation(results: StudyResults) -> tuple[float, float] | None:
    """Peak memory of a process of the recommended combination and of the baseline, medians over the
    sessions of the last comparison; None if no combination is recommended."""
    sessions = results.search.sessions if choose(results)[0].searched else []
    peaks = {
        name: [
            side.peak_memory_bytes
            for session in sessions
            for side in session.sides
            if side.name == name and side.peak_memory_bytes
        ]
        for name in (BEST, BASELINE)
    }
    return (median(peaks[BEST]), median(peaks[BASELINE])) if all(peaks.values()) else None


class Measured(NamedTuple):
    """A variant in the tables, by its first rank."""

    result: MemoryResult
    rank: RankAnatomy
    formula: Formula
    check: Check | None  # the prediction against the fullest rank


def context(results: StudyResults) -> dict[str, Any]:
    checks, runs = tensor_checks(results), run_checks(results)
    by_variant = {check.variant: check for check in reversed(checks)}
    shown = [
        Measured(results.memory[name], rank, formula(results.specs[name]), by_variant.get(name))
        for name, rank in followed(results).items()
    ]
    by_size = sorted(shown, key=lambda one: one.rank.peak_tensor_bytes)
    predicted = predictions(results).values()
    peaks = {
        name: [rank.peak_tensor_bytes for rank in result.ranks]
        for name, result in schemes(results).items()
    }
    return {
        "recommended": of_recommendation(results),
        "fullest": by_size[-1] if by_size else None,
        "leanest": by_size[0] if by_size else None,
        "asked": results.study.memory is not None,
        "measured": shown,
        "without": [result for result in results.memory.values() if result.status != "ok"],
        "unpredicted": [p for p in predicted if p.status != "ok"],
        "tight": [p for p in predicted if p.fits is False],
        "detailed": {name: results.memory[name] for name in telling(results)},
        "schemes": peaks,  # of all devices
        "imbalance": lambda sizes: sizes[0] / max(sizes[1:]),
        "tensor_errors": errors(checks),
        "run_checks": runs,
        "run_errors": errors(runs),
        "cheaper": _cheaper(results),
        "foreign": {name: r.foreign for name, r in results.memory.items() if r.foreign},
        "searches": list(results.largest_batches.values()),
        "tried": _tried,
        "label": label,
    }


def _cheaper(results: StudyResults) -> list[dict[str, Any]]:
    """Variants that trade time for memory, by activation checkpointing or a loss in chunks, against
    the baseline."""
    found = followed(results)
    baseline = found.get(results.study.baseline)
    return [
        {
            "variant": name,
            "peak_bytes": rank.peak_tensor_bytes,
            "of_baseline": baseline and rank.peak_tensor_bytes / baseline.peak_tensor_bytes,
            "comparison": results.comparisons.get(name),
            "certificate": results.certificates[name].status,
        }
        for name, rank in found.items()
        if getattr(results.specs[name].model, "checkpoint", "none") != "none"
        or results.specs[name].training.loss.computed_twice
    ]


def _tried(search: LargestBatchResult) -> str:
    """The trials that confirm an answer: the largest size, and the next one."""
    return ", ".join(
        f"{trial.pairs:,} {trial.status}" for trial in search.trials if trial.purpose != "search"
    )
