"""The program ``trace diff A B``: two profiles side by side.

All times are of one step of one device, the mean over steps and devices. If a side marks no steps, they
are of the work of the first side: a recording of two minutes holds twice the work of one minute, so
the times of the second side are divided by how many times as often it ran the same kernels. The parts
of the wall time sum to the whole, so their differences explain its difference. Phases, classes,
collectives and kernels add up durations regardless of overlap; they show where to look.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from schemas.results.profiles import Breakdown, DeviceBreakdown
from transformer_core.trace.arguments import count, need, percent
from transformer_core.trace.breakdown.devices import Choice
from transformer_core.trace.breakdown.summary import breakdown_of_files
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.terminal import PARTS, bare, plain, table


@dataclass(frozen=True)
class Change:
    """The same item in both profiles, in milliseconds of a step; null if a profile lacks it."""

    name: str
    first_ms: float | None
    second_ms: float | None

    @property
    def difference_ms(self) -> float:
        """Second minus first; a missing entry takes no time."""
        return (self.second_ms or 0.0) - (self.first_ms or 0.0)

    @property
    def ratio(self) -> float | None:
        return self.second_ms / self.first_ms if self.first_ms and self.second_ms else None


@dataclass(frozen=True)
class Difference:
    """Two profiles side by side; in each list, the largest difference comes first."""

    first: str
    second: str
    step: Change
    parts: list[Change]  # of the wall time: their differences sum to that of the step
    phases: list[Change]
    operators: list[Change]  # by class
    collectives: list[Change]
    kernels: list[Change]  # by name, among those in the breakdowns
    notes: list[str] = field(default_factory=list)  # limits of the comparison
    unit: str = "step"  # the unit of work that the times cover

    @property
    def explanation(self) -> list[Change]:
        """The largest parts in the direction of the difference that together cover 90 % of it."""
        total, found, told = self.step.difference_ms, list[Change](), 0.0
        for part in self.parts:
            if total and part.difference_ms / total > 0 and told / total < 0.9:
                found.append(part)
                told += part.difference_ms
        return found


_LISTS = {
    "phases": ("phases", "phase", "busy_ns"),
    "operators": ("operators", "operator_class", "time_ns"),
    "collectives": ("collectives", "collective", "time_ns"),
    "kernels": ("kernel_times", "name", "time_ns"),
}
"""For each list of a difference: the list of a device, and the fields of name and time in it."""


@dataclass(frozen=True)
class _Side:
    """A profile, and the number of units of work of all its devices."""

    devices: Sequence[DeviceBreakdown]
    units: float

    def whole(self, name: str) -> float | None:
        """Milliseconds per unit in a part of the wall time; null if no device has that part."""
        values = [getattr(device.profiled, name) for device in self.devices]
        known = [value for value in values if value is not None]
        return sum(known) / 1e6 / self.units if known else None

    def parts(self) -> dict[str, float]:
        found = {name: self.whole(f"{column}_ns") for name, column in PARTS.items()}
        return {name: value for name, value in found.items() if value is not None}

    def times(self, *by: str) -> dict[str, float]:
        """Milliseconds per unit, by name."""
        sums = _sums(self.devices, *by)
        return {name: time / 1e6 / self.units for name, time in sums.items()}


def _sums(devices: Sequence[DeviceBreakdown], listed: str, name: str, field: str) -> Counter[str]:
    """The sums of a field in a list of the devices, by name."""
    found = Counter[str]()
    for device in devices:
        for use in getattr(device, listed):
            found[getattr(use, name)] += getattr(use, field)
    return found


def difference(first: Breakdown, second: Breakdown) -> Difference:
    """Compares two profiles; both must have a device."""
    one, other, unit, notes = _sides(first, second)

    def changes(before: dict[str, float], after: dict[str, float]) -> list[Change]:
        names = dict.fromkeys([*before, *after])
        found = [Change(name, before.get(name), after.get(name)) for name in names]
        return sorted(found, key=lambda change: -abs(change.difference_ms))

    lists = {name: changes(one.times(*by), other.times(*by)) for name, by in _LISTS.items()}
    for names in _incomplete([*first.devices, *second.devices]):
        lists["kernels"] = [change for change in lists["kernels"] if change.name in names]
    if (counts := (len(first.devices), len(second.devices)))[0] != counts[1]:
        notes.append(f"Number of devices: {first.name} {counts[0]}, {second.name} {counts[1]}")
    if first.source != second.source:
        notes.append("The two were recorded by different profilers, which slow a step differently")
    return Difference(
        first=first.name,
        second=second.name,
        step=Change(unit, one.whole("window_ns"), other.whole("window_ns")),
        parts=changes(one.parts(), other.parts()),
        **lists,
        notes=notes,
        unit=unit,
    )


def _sides(first: Breakdown, second: Breakdown) -> tuple[_Side, _Side, str, list[str]]:
    """Both sides with a common unit of work, the name of the unit, and notes."""
    sides = (first, second)
    bare = [side.name for side in sides if not any(device.steps for device in side.devices)]
    if not bare:
        one, other = (_Side(side.devices, side.device_steps) for side in sides)
        return one, other, "step", []
    told = f"{' and '.join(dict.fromkeys(bare))} {'mark' if len({*bare}) > 1 else 'marks'} no steps"
    times = _times_as_much(first.devices, second.devices)
    note = f"{told}, and the two share no kernel: their totals are compared"
    if times is not None:
        note = (
            f"{told}: times are for the work of the first; the second did {times:.4g} times as much, "
            "judged by how often each ran the same kernels"
        )
    one = _Side(first.devices, len(first.devices))
    other = _Side(second.devices, len(second.devices) * (times or 1))
    return one, other, "trace" if times is None else "work", [note]


def _times_as_much(
    first: Sequence[DeviceBreakdown], second: Sequence[DeviceBreakdown]
) -> float | None:
    """The work of a device of the second relative to the first: the median ratio of kernel counts,
    weighted by time in the first; null if they share no kernel."""
    one, other, weights = (
        _sums(devices, "kernel_times", "name", field)
        for devices, field in ((first, "count"), (second, "count"), (first, "time_ns"))
    )
    known = (one.keys() & other.keys()).intersection(*_incomplete([*first, *second]))
    each = len(first) / len(second)
    shared = sorted((other[name] / one[name] * each, weights[name]) for name in known)
    half = sum(weight for _, weight in shared) / 2
    for ratio, weight in shared:
        half -= weight
        if half <= 0:
            return ratio
    return None


def lists_all_kernels(breakdown: Breakdown) -> bool:
    """Whether a breakdown lists all kernels, not only the longest."""
    return not _incomplete(breakdown.devices)


def _incomplete(devices: Sequence[DeviceBreakdown]) -> list[set[str]]:
    """The kernels of each device that lists only the longest: others may have run there, too."""
    return [
        {kernel.name for kernel in device.kernel_times}
        for device in devices
        if sum(kernel.count for kernel in device.kernel_times) < device.kernels
    ]


_ALL = Choice(kernels=10_000)
REGRESSION = 3
"""The exit code if the second is slower than allowed; 1 is an error, 2 a wrong command line."""


def read_profile(path: Path) -> Breakdown:
    """Reads a profile: a breakdown.json, a folder with one or with the traces of all ranks, or one
    trace. Raises TraceError if there is none."""
    if (path / "breakdown.json").is_file():
        path = path / "breakdown.json"
    found = _breakdown(path) or breakdown_of_files([path], path.name, _ALL)[0]
    if not found.devices:
        raise TraceError(path, f"has nothing to compare ({found.reason})", "give another profile")
    return found


def _breakdown(path: Path) -> Breakdown | None:
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        with path.open("rb") as stream:
            if b'"source_version"' not in stream.read(4096):
                return None
        return Breakdown.model_validate_json(path.read_bytes())
    except OSError:
        return None  # the reader of traces says why
    except ValidationError as error:
        reason = (
            f"is a breakdown that is damaged or of another version ({str(error).splitlines()[0]})"
        )
        raise TraceError(path, reason, "make it again from its traces") from None


def text(found: Difference, count: int) -> str:
    rows: list[tuple[str, ...]] = []
    lists = {"": [found.step], "wall time": found.parts}
    for title, changes in (lists | {name: getattr(found, name) for name in _LISTS}).items():
        some = [change for change in changes if change.first_ms or change.second_ms]
        if some and title:
            rows.append((title, "", "", "", ""))
        rows += [_row(change, "  " if title else "") for change in some[:count]]
    unit = "the work" if found.unit == "work" else f"a {found.unit}"
    heads = (f"ms of {unit}", "first", "second", "difference", "")
    lines = [f"first:  {found.first}", f"second: {found.second}", *table(heads, rows)]
    if found.explanation:
        told = ", ".join(f"{part.name} {part.difference_ms:+.3f} ms" for part in found.explanation)
        lines.append(f"The {found.unit} differs by {found.step.difference_ms:+.3f} ms: {told}")
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def _row(change: Change, indent: str) -> tuple[str, ...]:
    times = (change.first_ms, change.second_ms)
    shown = ("-" if time is None else f"{time:,.3f}" for time in times)
    ratio = f"{change.ratio:.2f} x" if change.ratio else ""
    return (indent + bare(change.name), *shown, f"{change.difference_ms:+,.3f}", ratio)


def _verdict(found: Difference, allowed: float) -> tuple[str, int]:
    if found.step.ratio is None or found.unit == "trace":
        return "Step lengths cannot be compared", 0
    growth = 100 * (found.step.ratio - 1)
    who = {"step": "A step", "work": "The same work"}[found.unit]
    if growth > allowed:
        return f"{who} takes {growth:.1f} % longer, more than the {allowed:g} % allowed", REGRESSION
    if growth > 0:
        return f"{who} takes {growth:.1f} % longer, of the {allowed:g} % allowed", 0
    return (f"{who} takes {-growth:.1f} % less" if growth else f"{who} takes as long"), 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="trace diff",
        description="Compare two profiles by part of the wall time, phase, class of operators, "
        "collective and kernel. A profile is a trace, a folder with the traces of all ranks, or "
        f"a breakdown.json. Exit status {REGRESSION} if a step of the second takes longer than "
        "allowed, 1 if a profile cannot be used, 2 for a wrong command.",
    )
    for name, told in (("first", "before"), ("second", "after")):
        told = f"the profile {told}, for example {told}/"
        parser.add_argument(name, nargs="?", type=Path, help=told)
    parser.add_argument(
        "--allowed",
        type=percent,
        default=5.0,
        help="percentage by which a step may take longer (default: %(default)g)",
    )
    parser.add_argument(
        "--top", type=count, default=10, help="rows of each list (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    need(parser, first=options.first, second=options.second)
    profiles = [
        read_profile(path).model_copy(update={"name": str(path)})
        for path in (options.first, options.second)
    ]
    found = difference(*profiles)
    found.notes.extend(
        f"{profile.name} lists only its longest kernels: other kernels are left out"
        for profile in profiles
        if not lists_all_kernels(profile)
    )
    verdict, code = _verdict(found, options.allowed)
    print(plain(f"{text(found, options.top)}\n{verdict}"))
    return code
