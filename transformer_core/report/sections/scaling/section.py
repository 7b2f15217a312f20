"""What the section on slow links and more devices shows."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from schemas.config.link import LinkKind, show_bandwidth
from schemas.results import (
    Comparison,
    VariantResult,
)
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.scaling.read import (
    MOST_ERROR,
    STRATEGIES,
    dropped,
    shown_curves,
)


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


def linked_runs(results: StudyResults) -> list[LinkedRun]:
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


def context(results: StudyResults) -> dict[str, Any]:
    """Runs over links, the error of the emulated one, and projections."""
    projection = results.projection
    curves = shown_curves(projection) if projection else []
    return {
        "runs": linked_runs(results),
        "link_error": results.link_error,
        "projection": projection,
        "curves": curves,
        "knees": {curve.link: curve for curve in curves if curve.strategy == "ddp"},
        "dropped": dropped(projection) if projection and not projection.reason else {},
        "most_error": MOST_ERROR,
        "strategies": STRATEGIES,
        "show_bandwidth": show_bandwidth,
    }
