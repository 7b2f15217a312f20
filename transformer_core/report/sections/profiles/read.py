"""The profiles of a study, as the report reads them."""

from schemas.results import Breakdown, Roofline
from transformer_core.decide.study_results import StudyResults

_TELLING = 4
_USUAL: tuple[tuple[str, bool], ...] = (("ddp", False), ("ddp", True), ("fsdp", False))
"""Kind of the division of work, and whether gradients accumulate."""


def shown(results: StudyResults) -> dict[str, Breakdown]:
    """The breakdowns that hold a device."""
    return {name: found for name, found in results.breakdowns.items() if found.devices}


def telling(results: StudyResults) -> list[str]:
    """The few variants that are shown in detail: the baseline, and the first of each way of
    dividing and synchronising the work, the usual ways first; and all that the user brought."""
    seen: dict[tuple[str, bool], str] = {}
    found = list(shown(results))
    names = [name for name in found if name in results.specs]
    for name in sorted(names, key=lambda name: name != results.study.baseline):
        spec = results.specs[name]
        way = (spec.parallel.kind, spec.training.accumulation.micro_batches > 1)
        seen.setdefault(way, name)
    baseline, *others = seen or [None]
    ways = sorted(others, key=lambda way: _USUAL.index(way) if way in _USUAL else len(_USUAL))
    variants = [seen[way] for way in [baseline, *ways] if way][:_TELLING]
    return variants + [name for name in found if name in results.study.traces]


def measured_roofline(results: StudyResults) -> Roofline | None:
    """What the machine reaches, if that was measured."""
    return results.roofline if results.roofline.status == "ok" else None
