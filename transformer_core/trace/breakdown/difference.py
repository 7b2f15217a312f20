"""Two profiles side by side: where a step of the second takes longer or shorter, and through what.

All times are of one step of one device, mean over steps and devices. The parts of the wall time sum
to the step, so their differences sum to that of the step: they explain it whole. Phases, classes,
collectives and kernels add up durations, whatever runs beside them, and say what to look at.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.results.profiles import Breakdown, DeviceBreakdown

Use = TypeVar("Use")

_PARTS = {
    "computation": "compute_ns",
    "exposed communication": "exposed_communication_ns",
    "exposed copies": "exposed_copies_ns",
    "exposed CUDA graphs": "exposed_graphs_ns",
    "idle": "idle_ns",
}


@dataclass(frozen=True)
class Change:
    """One thing in both profiles, in milliseconds of a step; null where a profile lacks it."""

    name: str
    first_ms: float | None
    second_ms: float | None

    @property
    def difference_ms(self) -> float:
        """Second minus first; what is not there takes no time."""
        return (self.second_ms or 0.0) - (self.first_ms or 0.0)

    @property
    def ratio(self) -> float | None:
        """Second over first; null where either is zero or not there."""
        return self.second_ms / self.first_ms if self.first_ms and self.second_ms else None


@dataclass(frozen=True)
class Difference:
    """Two profiles side by side; each list by the size of the difference, largest first."""

    first: str
    second: str
    step: Change
    parts: list[Change]
    """Of the wall time: their differences sum to that of the step."""
    phases: list[Change]
    operators: list[Change]
    """By class."""
    collectives: list[Change]
    kernels: list[Change]
    """By name, of those that the breakdowns list."""
    notes: list[str] = field(default_factory=list)
    """Why the two can be compared in part only."""

    @property
    def explanation(self) -> list[Change]:
        """The parts that make up most of the difference: in its direction, until 90 % are told."""
        total, found, told = self.step.difference_ms, list[Change](), 0.0
        for part in self.parts:
            if total and part.difference_ms / total > 0 and told / total < 0.9:
                found.append(part)
                told += part.difference_ms
        return found


def difference(first: Breakdown, second: Breakdown) -> Difference:
    """The two side by side; both must hold a device."""
    sides = (first.devices, second.devices)

    def changes(time: Callable[[Sequence[DeviceBreakdown]], dict[str, float]]) -> list[Change]:
        one, other = (time(side) for side in sides)
        names = dict.fromkeys([*one, *other])
        found = [Change(name, one.get(name), other.get(name)) for name in names]
        return sorted(found, key=lambda change: -abs(change.difference_ms))

    return Difference(
        first=first.name,
        second=second.name,
        step=Change("step", *(_per_step(side, _window) for side in sides)),
        parts=changes(_parts),
        phases=changes(
            lambda side: _times(side, lambda d: ((p.phase, p.busy_ns) for p in d.phases))
        ),
        operators=changes(
            lambda side: _times(
                side, lambda d: ((o.operator_class, o.time_ns) for o in d.operators)
            )
        ),
        collectives=changes(
            lambda side: _times(side, lambda d: ((c.collective, c.time_ns) for c in d.collectives))
        ),
        kernels=_listed(
            changes(
                lambda side: _times(side, lambda d: ((k.name, k.time_ns) for k in d.kernel_times))
            ),
            *map(lists_all_kernels, (first, second)),
        ),
        notes=_notes(first, second),
    )


def lists_all_kernels(breakdown: Breakdown) -> bool:
    """Whether a breakdown lists every kernel that ran, not the longest alone."""
    return all(
        sum(kernel.count for kernel in device.kernel_times) >= device.kernels
        for device in breakdown.devices
    )


def _listed(kernels: list[Change], first: bool, second: bool) -> list[Change]:
    """Without those that a side lacks which does not list all of its kernels: they may have run."""
    return [
        one
        for one in kernels
        if (first or one.first_ms is not None) and (second or one.second_ms is not None)
    ]


def _window(device: DeviceBreakdown) -> int:
    return device.profiled.window_ns


def _steps(devices: Sequence[DeviceBreakdown]) -> int:
    return sum(max(1, len(device.steps)) for device in devices)


def _per_step(
    devices: Sequence[DeviceBreakdown], time: Callable[[DeviceBreakdown], int | None]
) -> float | None:
    times = [time(device) for device in devices]
    known = [value for value in times if value is not None]
    return sum(known) / 1e6 / _steps(devices) if known else None


def _parts(devices: Sequence[DeviceBreakdown]) -> dict[str, float]:
    found = {}
    for name, column in _PARTS.items():
        value = _per_step(devices, lambda device, c=column: getattr(device.profiled, c))  # type: ignore[misc]
        if value is not None:
            found[name] = value
    return found


def _times(
    devices: Sequence[DeviceBreakdown],
    uses: Callable[[DeviceBreakdown], Iterable[tuple[str, int]]],
) -> dict[str, float]:
    total: defaultdict[str, int] = defaultdict(int)
    for device in devices:
        for name, time in uses(device):
            total[name] += time
    return {name: time / 1e6 / _steps(devices) for name, time in total.items()}


def _notes(first: Breakdown, second: Breakdown) -> list[str]:
    notes = []
    for one in (first, second):
        if not any(device.steps for device in one.devices):
            notes.append(f"{one.name} marks no steps: the whole trace stands for one")
    if (counts := (len(first.devices), len(second.devices)))[0] != counts[1]:
        notes.append(f"{first.name} ran on {counts[0]} devices, {second.name} on {counts[1]}")
    if first.source != second.source:
        notes.append("The two were recorded by different profilers, which slow a step differently")
    return notes
