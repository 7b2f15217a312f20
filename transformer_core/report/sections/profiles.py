"""Profiles by variant: parts of a step, operators, collectives, phases."""

from dataclasses import dataclass
from typing import Any

from schemas.results import Breakdown, ProfileSummary, Roofline
from transformer_core.decide.study_results import StudyResults


@dataclass(frozen=True)
class PerStep:
    """Turns sums over the steps of all devices into means per step of a device."""

    name: str
    steps: int  # steps of all devices

    def per_step(self, count: float | None) -> float | None:
        return None if count is None else count / self.steps

    def milliseconds(self, nanoseconds: int | None) -> float | None:
        return None if nanoseconds is None else nanoseconds / 1e6 / self.steps

    def billions(self, count: int | None) -> float | None:
        return None if count is None else count / 1e9 / self.steps

    @staticmethod
    def rate(count: int | None, nanoseconds: int) -> float | None:
        """Billions per second."""
        return count / nanoseconds if count is not None and nanoseconds else None


@dataclass(frozen=True)
class Profile(PerStep):
    breakdown: Breakdown
    communication_ms: float | None
    """Milliseconds of a step during which communication runs; null without communication."""
    ddp_communication_ms: float | None
    """The same by DistributedDataParallel's own timers; null without them."""
    viewer_files: list[str]  # files for a viewer, relative to the page

    @property
    def summary(self) -> ProfileSummary:
        """The numbers of a profile that is ok."""
        assert self.breakdown.summary is not None
        return self.breakdown.summary


def context(results: StudyResults) -> dict[str, Any]:
    """The profiles, the reasons for missing ones, and the few that are shown in detail."""
    profiles = {
        name: _profile(results, name, breakdown) for name, breakdown in results.breakdowns.items()
    }
    ok = {name: profile for name, profile in profiles.items() if profile.breakdown.devices}
    reasons = {profile.breakdown.profiler_reason for profile in profiles.values()}
    reference = ok.get(results.study.baseline)
    exposed = {p.name: p.summary.exposed_communication or 0.0 for p in ok.values()}
    most = max(exposed, key=lambda name: exposed[name], default=None)
    return {
        "profiles": ok,
        "usual": reference or next(iter(ok.values()), None),
        "talkative": ok[most] if most is not None and exposed[most] else None,
        "brought": list(results.study.traces),
        "stragglers": [p for p in ok.values() if len(p.summary.stragglers) > 1],
        "without": [p.breakdown for p in profiles.values() if not p.breakdown.devices],
        "detailed": [ok[name] for name in telling(results)],
        "profiler_reasons": sorted(reason for reason in reasons if reason),
        "noted": [p for p in ok.values() if p.breakdown.notes],
    }


def _profile(results: StudyResults, name: str, breakdown: Breakdown) -> Profile:
    capture = results.capture(name)
    steps = breakdown.device_steps
    talks = any(device.collectives for device in breakdown.devices)
    runs = sum(device.profiled.communication_ns for device in breakdown.devices)
    times = (
        [ddp.communication_seconds for rank in capture.ranks for ddp in rank.ddp] if capture else []
    )
    return Profile(
        name=name,
        breakdown=breakdown,
        steps=steps,
        communication_ms=runs / 1e6 / steps if talks else None,
        ddp_communication_ms=1e3 * sum(times) / len(times) if times else None,
        viewer_files=[f"profiles/{name}/{file}" for file in breakdown.viewer_files],
    )


_TELLING = 4
_USUAL: tuple[tuple[str, bool], ...] = (("ddp", False), ("ddp", True), ("fsdp", False))
"""Kind of parallel strategy, and whether gradients accumulate."""


def shown(results: StudyResults) -> dict[str, Breakdown]:
    return {name: found for name, found in results.breakdowns.items() if found.devices}


def telling(results: StudyResults) -> list[str]:
    """The few variants that are shown in detail: the baseline, the first one for each way of dividing
    and synchronising the work, the usual ways first, and all of the user's own traces."""
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
    return results.roofline if results.roofline.status == "ok" else None
