"""``python -m transformer_core.trace diff A B``: two profiles side by side.

All times are of one step of one device, mean over steps and devices. The parts of the wall time sum
to the step, so their differences sum to that of the step: they explain it whole. Phases, classes,
collectives and kernels add up durations, whatever runs beside them, and say what to look at.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from schemas.errors import ConfigError
from schemas.results.profiles import Breakdown, DeviceBreakdown
from transformer_core.trace.arguments import count, percent, traces_of
from transformer_core.trace.breakdown.devices import KernelChoice
from transformer_core.trace.breakdown.profile import Choice, breakdown_of_files
from transformer_core.trace.events.process import unusable

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


_ALL = Choice(KernelChoice(count=10_000))
REGRESSION = 3
"""The exit code where the second is slower than allowed; 1 is an error, 2 a wrong command line."""


def read_profile(path: Path, cache: Path | None = None) -> Breakdown:
    """The profile that a path stands for: a breakdown.json, a folder that holds one or the traces
    of all ranks, or one trace. Raises TraceError where there is none."""
    choice = replace(_ALL, cache=cache)
    if (path / "breakdown.json").is_file():
        path = path / "breakdown.json"
    if path.is_dir():
        found, _ = breakdown_of_files(traces_of([path]), path.name, choice)
    else:
        found = _breakdown(path) or breakdown_of_files([path], path.name, choice)[0]
    if not found.devices:
        raise unusable(path, f"has nothing to compare ({found.reason})", "give another profile")
    return found


def _breakdown(path: Path) -> Breakdown | None:
    """A file that is a breakdown already; null for any other."""
    try:
        with path.open("rb") as stream:
            start = stream.read(4096)
        if path.suffix != ".json" or b'"source_version"' not in start:
            return None
        return Breakdown.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def text(found: Difference, count: int) -> str:
    """The differences as lines."""
    lines = [f"first:  {found.first}", f"second: {found.second}"]
    heads = f"{'first':>14}{'second':>14}{'difference':>14}"
    lines.append(f"{'ms of a step':<{_NAME}}{heads}")
    for title, changes in (
        ("", [found.step]),
        ("wall time", found.parts),
        ("phases", found.phases),
        ("operators", found.operators),
        ("collectives", found.collectives),
        ("kernels", found.kernels),
    ):
        some = [change for change in changes if change.first_ms or change.second_ms]
        if some and title:
            lines.append(title)
        lines += [_line(change, indent=bool(title)) for change in some[:count]]
    if found.explanation:
        told = ", ".join(f"{part.name} {part.difference_ms:+.3f} ms" for part in found.explanation)
        lines.append(f"The step differs by {found.step.difference_ms:+.3f} ms: {told}")
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


_NAME = 58
"""Columns that a name may take."""
_COMMON = re.compile(
    r"^void |\(anonymous namespace\)::|\bat::native::|(?<=.)\((?:[^()]|\([^()]*\))*\)$"
)
"""What most kernels share, and their parameters."""


def short(name: str) -> str:
    """A name that fits, cut in the middle, for it is at both ends that names differ."""
    room = _NAME - 3
    name = _COMMON.sub("", name)
    return name if len(name) <= room else f"{name[: room * 2 // 3]}...{name[3 - room // 3 :]}"


def _line(change: Change, indent: bool) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.3f}"

    name = ("  " if indent else "") + short(change.name)
    ratio = f"{change.ratio:8.2f} x" if change.ratio else ""
    return (
        f"{name:<{_NAME}}{shown(change.first_ms):>14}{shown(change.second_ms):>14}"
        f"{change.difference_ms:>+14.3f}{ratio}"
    )


def _verdict(step: Change, allowed: float) -> tuple[str, int]:
    """What the comparison comes to, as a sentence and as an exit code."""
    if step.ratio is None:
        return "Nothing can be said of the length of a step", 0
    growth = 100 * (step.ratio - 1)
    if growth > allowed:
        return (
            f"A step takes {growth:.1f} % longer, more than the {allowed:g} % allowed",
            REGRESSION,
        )
    if growth > 0:
        return f"A step takes {growth:.1f} % longer, of the {allowed:g} % allowed", 0
    return (f"A step takes {-growth:.1f} % less" if growth else "A step takes as long"), 0


def main(arguments: Sequence[str]) -> int:
    """Print the differences; :data:`REGRESSION` if the second is slower by more than allowed."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.trace diff",
        description="Two profiles side by side: by part of the wall time, phase, class of "
        "operators, collective and kernel. A profile is a breakdown.json, a trace, or a folder "
        f"with either. Exits with {REGRESSION} if a step of the second takes longer than allowed.",
    )
    parser.add_argument("first", type=Path, help="what it was, for example before/")
    parser.add_argument("second", type=Path, help="what it is now, for example after/")
    parser.add_argument(
        "--allowed", type=percent, default=5.0, help="per cent that a step may grow (default 5)"
    )
    parser.add_argument("--top", type=count, default=10, help="lines of each list (default 10)")
    parser.add_argument("--cache", type=Path, help="folder to keep the events of traces in")
    options = parser.parse_args(arguments)
    try:
        profiles = [read_profile(path, options.cache) for path in (options.first, options.second)]
        found = difference(*profiles)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    sides = zip((options.first, options.second), profiles, strict=True)
    for path, profile in sides:
        if not lists_all_kernels(profile):
            found.notes.append(
                f"{path} lists its longest kernels alone: those of the other are left out"
            )
    print(text(replace(found, first=str(options.first), second=str(options.second)), options.top))
    verdict, code = _verdict(found.step, options.allowed)
    print(verdict)
    return code
