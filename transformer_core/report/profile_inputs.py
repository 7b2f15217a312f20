"""The profiles of a study, as the report reads them."""

from pathlib import Path

from schemas.results import Breakdown, Roofline
from transformer_core.analysis.files import read_record
from transformer_core.report.inputs import Results

_TELLING = 4
_USUAL: tuple[tuple[str, bool], ...] = (("ddp", False), ("ddp", True), ("fsdp", False))
"""Kind of the division of work, and whether gradients accumulate."""


def read_breakdowns(results: Results) -> dict[str, Breakdown]:
    """The breakdowns of the variants that have one, in the order of the study."""
    paths = {name: folder_of(results, name) / "breakdown.json" for name in results.variants}
    return {name: read_record(path, Breakdown) for name, path in paths.items() if path.exists()}


def shown(results: Results) -> dict[str, Breakdown]:
    """Those of them that hold a device."""
    return {name: found for name, found in read_breakdowns(results).items() if found.devices}


def folder_of(results: Results, variant: str) -> Path:
    """The folder of a variant's profile."""
    return results.folder / "profiles" / variant


def telling(results: Results) -> list[str]:
    """The few variants that are shown in detail: the baseline, and the first of each way of
    dividing and synchronising the work, the usual ways first."""
    seen: dict[tuple[str, bool], str] = {}
    names = list(shown(results))
    for name in sorted(names, key=lambda name: name != results.study.baseline):
        spec = results.specs[name]
        way = (spec.parallel.kind, spec.training.accumulation.micro_batches > 1)
        seen.setdefault(way, name)
    baseline, *others = seen or [None]
    ways = sorted(others, key=lambda way: _USUAL.index(way) if way in _USUAL else len(_USUAL))
    return [seen[way] for way in [baseline, *ways] if way][:_TELLING]


def read_roofline(results: Results) -> Roofline | None:
    """What the machine reaches, if that was measured."""
    path = results.folder / "machine" / "roofline.json"
    found = read_record(path, Roofline) if path.exists() else None
    return found if found and found.status == "ok" else None
