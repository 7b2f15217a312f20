"""``python -m transformer_core.trace diff A B``: two profiles side by side."""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from schemas.errors import ConfigError
from schemas.results.profiles import Breakdown
from transformer_core.trace.arguments import count, percent, traces_of
from transformer_core.trace.breakdown.difference import (
    Change,
    Difference,
    difference,
    lists_all_kernels,
)
from transformer_core.trace.breakdown.job import Choice, breakdown_of_files
from transformer_core.trace.breakdown.kernel_use import KernelChoice
from transformer_core.trace.readers.trace_kind import unusable

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
