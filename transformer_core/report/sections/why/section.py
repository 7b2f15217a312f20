"""What the section on the reasons of differences shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from schemas.results import Breakdown, LaunchUse, PathPart, StepBound
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.sections.profiles.read import shown, telling
from transformer_core.report.sections.why.read import Reason, reasons


@dataclass(frozen=True)
class Bound:
    """What the steps of a variant wait for."""

    name: str
    parts: StepBound
    launches: Sequence[LaunchUse]
    """Of the devices where launches are known."""

    def share(self, part: str) -> float | None:
        """Of the wall time of the steps."""
        time: int = getattr(self.parts, f"{part}_ns")
        return time / self.parts.window_ns if self.parts.window_ns else None

    @property
    def delay_ms(self) -> float | None:
        """Median over devices of the median delay from launch to begin."""
        delays = [use.delay_median_ns for use in self.launches]
        return median(delays) / 1e6 if delays else None

    @property
    def queue(self) -> float | None:
        """Median over devices of the median number of launched events that have not begun."""
        queues = [use.queue_median for use in self.launches]
        return median(queues) if queues else None


@dataclass(frozen=True)
class Path:
    """The critical path of one step of one device."""

    name: str
    rank: int
    parts: Sequence[PathPart]
    window_ns: int

    def share(self, part: PathPart) -> float:
        """Of the step."""
        return part.time_ns / self.window_ns


def context(results: StudyResults) -> dict[str, Any]:
    """Every comparison with its reason, what each profiled variant waits for, and a few paths."""
    found = reasons(results)
    profiles = shown(results)
    bounds = [bound for name in profiles if (bound := _bound(name, profiles[name]))]
    of_baseline = [bound for bound in bounds if bound.name == results.study.baseline]
    return {
        "reasons": found,
        "best": _best(found, results.study.baseline),
        "bounds": bounds,
        "usual": next(iter([*of_baseline, *bounds]), None),
        "paths": [path for name in telling(results) if (path := _path(name, profiles[name]))],
    }


def _best(found: Sequence[Reason], baseline: str) -> Reason | None:
    """The comparison with the baseline that counts and is fastest; null if none is faster."""
    faster = [
        (reason.comparison.speedup.median, reason)
        for reason in found
        if reason.comparison.reference == baseline
        and reason.comparison.counts
        and reason.comparison.verdict == "FASTER"
        and reason.comparison.speedup is not None
    ]
    return max(faster, key=lambda item: item[0])[1] if faster else None


def _bound(name: str, breakdown: Breakdown) -> Bound | None:
    parts = breakdown.summary.bound if breakdown.summary else None
    launches = [device.launches for device in breakdown.devices if device.launches]
    return Bound(name, parts, launches) if parts else None


def _path(name: str, breakdown: Breakdown) -> Path | None:
    device = breakdown.devices[0]
    whole = sum(part.time_ns for part in device.critical_path)
    return Path(name, device.rank, device.critical_path[:12], whole) if whole else None
