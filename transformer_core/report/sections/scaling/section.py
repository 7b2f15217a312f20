"""What the section on slow links and more devices shows."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from schemas.link import LinkKind, show_bandwidth
from schemas.results import (
    Comparison,
    LinkError,
    ProjectedCurve,
    Projection,
    VariantResult,
)
from transformer_core.analysis.files import read_record
from transformer_core.report.inputs import Results

STRATEGIES = {
    "ddp": "DDP",
    "ddp_no_overlap": "DDP without overlap",
    "accumulation_sync": "accumulation, every micro-batch reduced",
    "accumulation_no_sync": "accumulation with no_sync",
    "fsdp": "FSDP",
    "central": "central",
}
"""Projected strategies in words."""


@dataclass(frozen=True)
class LinkedRun:
    """A variant on several hosts."""

    result: VariantResult
    bandwidth: str | None
    """Of the limited link; null for a link as it is."""
    kind: LinkKind | None
    hosts: list[str]
    step_seconds: float | None
    comparisons: list[Comparison]
    """With other runs over several hosts."""


SHOWN_BUCKET_MB = 25.0
"""Bucket size of the strategies that are shown: DistributedDataParallel's own default."""


def shown_curves(projection: Projection) -> list[ProjectedCurve]:
    """The curves of the strategies, with one bucket size for those that have buckets."""
    return [curve for curve in projection.curves if curve.bucket_mb in (None, SHOWN_BUCKET_MB)]


def read_projection(results: Results) -> Projection | None:
    """The projection; null where the study wants none."""
    if results.study.projection is None:
        return None
    return read_record(results.folder / "projection" / "projection.json", Projection)


def read_link_error(results: Results) -> LinkError | None:
    """The error of the emulated link; null where the study does not check it."""
    if results.study.link_check is None:
        return None
    return read_record(results.folder / "links" / "error.json", LinkError)


def linked_runs(results: Results) -> list[LinkedRun]:
    """The variants on several hosts, in the order of the study."""
    names = [name for name, spec in results.specs.items() if spec.machine.nodes > 1]
    found = []
    for name in names:
        result, link = results.variants[name], results.specs[name].machine.link
        topologies = [r.topology for r in result.repeats if r.topology is not None]
        used = topologies[0].link if topologies else None
        seconds = [
            window.seconds / (window.last_step - window.first_step + 1)
            for repeat in result.repeats
            for window in repeat.windows
        ]
        found.append(
            LinkedRun(
                result=result,
                bandwidth=show_bandwidth(link.bandwidth) if link else None,
                kind=used.kind if used else None,
                hosts=list(dict.fromkeys(p.host for t in topologies[:1] for p in t.ranks)),
                step_seconds=median(seconds) if seconds else None,
                comparisons=[
                    comparison
                    for comparison in results.all_comparisons
                    if comparison.variant == name and comparison.reference in names
                ],
            )
        )
    return found


def scaling_context(results: Results) -> dict[str, Any]:
    """Runs over links, the error of the emulated one, and projections."""
    projection = read_projection(results)
    return {
        "runs": linked_runs(results),
        "link_error": read_link_error(results),
        "projection": projection,
        "curves": shown_curves(projection) if projection else [],
        "strategies": STRATEGIES,
        "show_bandwidth": show_bandwidth,
    }
