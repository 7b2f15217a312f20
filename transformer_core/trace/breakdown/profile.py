"""From files of a profiler to the event table and its breakdown."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from schemas.results.common import Status
from schemas.results.profiles import Breakdown
from transformer_core.trace.breakdown.devices import USUAL, Choice, break_down_all
from transformer_core.trace.breakdown.summary import (
    layers,
    roofline_share,
    shapes,
    sources,
    summarise,
)
from transformer_core.trace.events.columns import NULL
from transformer_core.trace.events.event_table import EVERYTHING, Events, Rows, rows_of
from transformer_core.trace.events.process import unusable
from transformer_core.trace.readers.files import Reading, read_files

if TYPE_CHECKING:
    from schemas.results.machine import Roofline

NO_EVENTS = (
    "the trace holds no device event: either the capture range never began, or the program ran "
    "nothing on a device"
)

NOTHING_INSIDE = "the window of --from and --to holds no device event of the trace"


def breakdown_of_files(
    paths: Sequence[Path], name: str, choice: Choice = USUAL
) -> tuple[Breakdown, Events]:
    """The breakdown of traces that a user brought, and their event table; TraceError where they
    cannot be used."""
    reading = read_files(paths)
    whole = len(reading.events)
    reading = replace(reading, events=choice.window.of(reading.events))
    files = [str(path) for path in reading.files]
    found = break_down_reading(reading, name, files, choice=choice)
    if not found.devices and whole and choice.window != EVERYTHING:
        found = found.model_copy(update={"reason": NOTHING_INSIDE})
    return found, reading.events


def without_devices(
    name: str,
    status: Status,
    reason: str | None,
    profiler_reason: str | None = None,
    files: Sequence[str] = (),
) -> Breakdown:
    return Breakdown(
        name=name,
        status=status,
        reason=reason,
        source=None,
        source_version=None,
        profiler_reason=profiler_reason,
        viewer_files=list(files),
        devices=[],
    )


def break_down_reading(
    reading: Reading,
    name: str,
    viewer_files: list[str],
    profiler_reason: str | None = None,
    choice: Choice = USUAL,
) -> Breakdown:
    rows = rows_of(reading.events, but="memory")
    devices, waits = break_down_all(rows, choice)
    return Breakdown(
        name=name,
        status="ok" if devices else "failed",
        reason=None if devices else NO_EVENTS,
        source=reading.format,
        source_version=reading.version,
        profiler_reason=profiler_reason,
        viewer_files=viewer_files,
        devices=devices,
        summary=summarise(
            devices,
            waits.stragglers,
            layers(rows),
            shapes(rows, choice.shapes),
            sources(rows, choice.shapes, choice.accepts),
        ),
        notes=list(dict.fromkeys([*reading.notes, *waits.notes, *_launch_notes(rows)])),
    )


def with_longest(breakdown: Breakdown, count: int) -> Breakdown:
    """A breakdown whose devices list so many kernels."""
    devices = [
        device.model_copy(update={"kernel_times": device.kernel_times[:count]})
        for device in breakdown.devices
    ]
    return breakdown.model_copy(update={"devices": devices})


def read_roofline(path: Path) -> "Roofline":
    """A results/machine/roofline.json; TraceError if it is something else."""
    from schemas.results.machine import Roofline

    try:
        return Roofline.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(getattr(error, "strerror", None) or str(error).partition("\n")[0])
        remedy = "measure the ceilings of a machine: snakemake results/machine/roofline.json"
        raise unusable(path, f"tells no ceilings ({reason})", remedy) from None


def with_ceilings(breakdown: Breakdown, roofline: "Roofline") -> Breakdown:
    """A breakdown whose kernels tell the share of measured ceilings that they reach."""
    devices = []
    for device in breakdown.devices:
        kernels = [
            kernel.model_copy(update={"roofline_share": roofline_share(kernel, roofline)})
            for kernel in device.kernel_times
        ]
        devices.append(device.model_copy(update={"kernel_times": kernels}))
    return breakdown.model_copy(update={"devices": devices})


def _launch_notes(rows: Rows) -> list[str]:
    work = rows.work
    missing = int((work["launch_ns"] == NULL).sum())
    if not missing:
        return []
    return [
        f"{missing:,} of {len(work):,} device events have no launch in the trace: phase and "
        "operator of those are unknown, and the host-bound time is a lower bound"
    ]
