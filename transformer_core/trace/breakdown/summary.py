"""From a profiler's files to the event table and its breakdown: all devices of all ranks with a summary,
the tree of modules, operators by the shapes of their inputs with their share of the roofline, and
source lines.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from schemas.results.profiles import (
    Breakdown,
    DeviceBreakdown,
    KernelTime,
    LayerUse,
    OperatorClass,
    ProfileSummary,
    ShapeUse,
    SourceUse,
    Straggler,
)
from transformer_core.trace.breakdown.devices import USUAL, Choice, break_down_all
from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.clocks import EVERYTHING, clock_offsets, length_ms, unaligned
from transformer_core.trace.events.columns import NULL, Integers
from transformer_core.trace.events.event_table import (
    COMMUNICATION,
    Mask,
    Rows,
    ratio,
    rows_of,
    total,
)
from transformer_core.trace.events.operators import CONTRACTION, FORMATS
from transformer_core.trace.events.phases import SEPARATOR
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.readers.files import Reading, encodable, read_files

if TYPE_CHECKING:
    from schemas.results.machine import Roofline

NO_EVENTS = (
    "the trace holds no device event: either the capture range never began, or the program ran "
    "nothing on a device"
)


def breakdown_of_files(
    paths: Sequence[Path], name: str, choice: Choice = USUAL
) -> tuple[Breakdown, Reading]:
    """The breakdown and events of a user's traces; TraceError if they cannot be used."""
    reading = read_files(paths)
    whole, cut = reading.events, choice.window != EVERYTHING
    if cut and (told := unaligned(clock_offsets(rows_of(whole).work))):
        reading = replace(reading, notes=[*reading.notes, told])
    reading = replace(reading, events=choice.window.of(whole))
    files = [encodable(str(path)) for path in reading.files]
    found = break_down_reading(reading, name, files, choice=choice)
    if cut and len(whole) and not found.devices:
        reason = (
            "the window of --from and --to holds no device event of the trace, which is "
            f"{length_ms(whole):,.3f} ms long: choose another"
        )
        found = found.model_copy(update={"reason": reason})
    return found, reading


def break_down_reading(
    reading: Reading,
    name: str,
    viewer_files: list[str],
    profiler_reason: str | None = None,
    choice: Choice = USUAL,
) -> Breakdown:
    rows = rows_of(reading.events)
    rows = rows.where(~rows.equal("kind", "memory"))
    devices, waits = break_down_all(rows, choice)
    notes = [*reading.notes, *waits.notes, *_launch_notes(rows)]
    rows = rows.where(rows.counted)
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
        notes=list(dict.fromkeys(notes)),
    )


def _with_kernels(
    breakdown: Breakdown, change: Callable[[list[KernelTime]], list[KernelTime]]
) -> Breakdown:
    devices = [
        device.model_copy(update={"kernel_times": change(device.kernel_times)})
        for device in breakdown.devices
    ]
    return breakdown.model_copy(update={"devices": devices})


def with_longest(breakdown: Breakdown, count: int) -> Breakdown:
    """The breakdown with only the ``count`` longest kernels of each device."""
    return _with_kernels(breakdown, lambda kernels: kernels[:count])


def read_roofline(path: Path) -> "Roofline":
    """Reads a results/machine/roofline.json; TraceError if it is anything else."""
    from schemas.results.machine import Roofline

    try:
        return Roofline.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(getattr(error, "strerror", None) or str(error).partition("\n")[0])
        remedy = (
            "measure the ceilings of a machine: snakemake --cores all results/machine/roofline.json"
        )
        raise TraceError(path, f"does not contain ceilings ({reason})", remedy) from None


def with_ceilings(breakdown: Breakdown, roofline: "Roofline") -> Breakdown:
    """The breakdown with each kernel's share of the measured ceilings."""
    return _with_kernels(
        breakdown,
        lambda kernels: [
            kernel.model_copy(update={"roofline_share": roofline_share(kernel, roofline)})
            for kernel in kernels
        ],
    )


def _launch_notes(rows: Rows) -> list[str]:
    work = rows.work
    missing = int((work["launch_ns"] == NULL).sum())
    if not missing:
        return []
    return [
        f"{missing:,} of {len(work):,} device events have no launch in the trace: phase and "
        "operator of those are unknown, and the host-bound time is a lower bound"
    ]


Devices = Sequence[DeviceBreakdown]
Use = TypeVar("Use", bound=BaseModel)


def summarise(
    devices: Devices,
    stragglers: Sequence[Straggler] = (),
    layers: Sequence[LayerUse] = (),
    shapes: Sequence[ShapeUse] = (),
    sources: Sequence[SourceUse] = (),
) -> ProfileSummary | None:
    """The summary of a profile's devices; null if there are none."""
    if not devices:
        return None
    whole = [device.profiled for device in devices]
    window = sum(part.window_ns for part in whole)
    activities = [activity for device in devices for activity in device.activities]
    bounds = [device.bound for device in devices if device.bound]
    classes = sum(use.time_ns for device in devices for use in device.operators)

    def share(part: str, of: str = "window_ns") -> float | None:
        return ratio(_sum(whole, part), _sum(whole, of))

    return ProfileSummary(
        step_seconds=window / 1e9 / sum(max(1, len(device.steps)) for device in devices),
        compute=share("compute_ns"),
        exposed_communication=share("exposed_communication_ns"),
        exposed_copies=share("exposed_copies_ns"),
        exposed_graphs=share("exposed_graphs_ns"),
        idle=share("idle_ns"),
        overlap=share("overlap_ns"),
        hidden_communication=share("overlap_ns", of="communication_ns"),
        communication_of_device_time=ratio(
            sum(a.time_ns for a in activities if a.kind == COMMUNICATION),
            sum(a.time_ns for a in activities),
        ),
        operators=[
            _operators(uses, classes) for uses in _grouped(devices, "operators", "operator_class")
        ],
        collectives=[
            _together(uses, "collective", bus_bandwidth=_mean(uses, "bus_bandwidth"))
            for uses in _grouped(devices, "collectives", "collective")
        ],
        phases=[_together(uses, "phase") for uses in _grouped(devices, "phases", "phase")],
        forward_backward=[
            _together(
                uses,
                "operators",
                ratio=ratio(_sum(uses, "backward_ns") or None, _sum(uses, "forward_ns")),
                flops_ratio=_mean(uses, "flops_ratio"),
                bytes_ratio=_mean(uses, "bytes_ratio"),
            )
            for uses in _grouped(devices, "forward_backward", "operators")
        ],
        stragglers=list(stragglers),
        bound=_together(bounds) if bounds else None,
        layers=list(layers),
        shapes=list(shapes),
        sources=list(sources),
    )


def _grouped(devices: Devices, listed: str, key: str) -> Iterator[list[Any]]:
    """The entries of a list of the devices, grouped by name."""
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for device in devices:
        for use in getattr(device, listed):
            groups[getattr(use, key)].append(use)
    yield from groups.values()


def _together(uses: Sequence[Use], key: str = "", **fields: Any) -> Use:
    """Sums the fields of uses with the same name, except for the given ``fields``."""
    for name in type(uses[0]).model_fields.keys() - {key, *fields}:
        fields[name] = _sum(uses, name)
    return type(uses[0])(**({key: getattr(uses[0], key)} if key else {}), **fields)


def _operators(uses: Sequence[OperatorClass], whole: int) -> OperatorClass:
    counted = [use for use in uses if use.flops is not None]
    flops, traffic = _sum(counted, "flops"), _sum(counted, "bytes")
    time = sum(use.time_ns for use in uses)
    return _together(
        uses,
        "operator_class",
        share=ratio(time, whole),
        flops=flops,
        bytes=traffic,
        counted_ns=sum(use.counted_ns for use in counted),
        intensity=None if flops is None else ratio(flops, traffic),
    )


def _sum(uses: Sequence[Any], name: str) -> int | None:
    """The sum of a field; null if any value is null, or without values."""
    values = list(map(attrgetter(name), uses))
    return sum(values) if values and None not in values else None


def _mean(uses: Sequence[Any], name: str) -> float | None:
    whole = _sum(uses, name)
    return None if whole is None else whole / len(uses)


_PHASES = ("forward", "backward", "other")


def layers(rows: Rows) -> list[LayerUse]:
    """The modules of an event table in the order in which they run, parents before children; empty if
    nothing ran inside a module."""
    work = rows.work
    own: dict[str, Counter[str]] = _by_path(work)
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path, counts in own.items():
        for outer in _outer(path):
            sums[outer].update(counts)
    calls, held = _calls(rows.where(rows.equal("kind", "module")))
    first = _first_begins(rows.where(~rows.missing("layer"))) if own else {}
    order = sorted(sums, key=lambda path: [first.get(outer, 0) for outer in _outer(path)])
    return [
        LayerUse(
            path=path,
            calls=calls.get(path),
            **{f"{phase}_ns": sums[path][phase] for phase in _PHASES},
            own_ns=sum(own[path][phase] for phase in _PHASES) if path in own else 0,
            flops=sums[path].get("flops"),
            bytes=sums[path].get("bytes"),
            held_bytes=held.get(path),
        )
        for path in order
    ]


def _outer(path: str) -> list[str]:
    names = path.split(SEPARATOR)
    return [SEPARATOR.join(names[: k + 1]) for k in range(len(names))]


def _by_path(work: Rows) -> dict[str, Counter[str]]:
    """Time by phase and known work of each module, without its children."""
    forward = work.equal("phase", phases.FORWARD, phases.LOSS)
    backward = work.equal("phase", phases.BACKWARD)
    found = {}
    for path, mine in work.groups("layer").items():
        times, counts = work.durations[mine], Counter[str]()
        for name, phase in zip(_PHASES, (forward, backward, ~(forward | backward)), strict=True):
            counts[name] = int(times[phase[mine]].sum())
        for name, column in (("flops", "flops"), ("bytes", "operator_bytes")):
            if len(known := work[column][mine][work[column][mine] != NULL]):
                counts[name] = int(known.sum())
        found[path] = counts
    return found


def _calls(modules: Rows) -> tuple[dict[str, int], dict[str, int]]:
    """The number of calls by path, and the bytes that the calls in forward leave allocated."""
    inside: Mask = ~modules.equal("phase", phases.BACKWARD) & (modules["bytes"] != NULL)
    groups = modules.groups("layer")
    held = {
        path: int(modules["bytes"][mine][inside[mine]].sum())
        for path, mine in groups.items()
        if inside[mine].any()
    }
    return {path: len(mine) for path, mine in groups.items()}, held


def _first_begins(rows: Rows) -> dict[str, int]:
    """The first time of each module; parents have that of their first child."""
    found: dict[str, int] = {}
    begins = rows["launch_ns"]
    begins = np.where(begins == NULL, rows["t0_ns"], begins)
    for path, mine in rows.groups("layer").items():
        begin = int(begins[mine].min())
        for outer in _outer(path):
            found[outer] = min(begin, found.get(outer, begin))
    return found


def shapes(rows: Rows, count: int) -> list[ShapeUse]:
    """The operators, by the shapes of their inputs, with the longest total time."""
    work = rows.where(rows.equal("class", event_table.COMPUTE))
    whole = int(work.durations.sum())
    found = []
    for operator, text, mine, time in _longest(work, "operator", "shapes", count):
        head, _, rest = text.partition(" ")
        told = head in FORMATS
        found.append(
            ShapeUse(
                operator=operator,
                shapes=rest if told else text,
                number_format=head if told else None,
                operator_class=work["operator_class"][mine[0]],
                count=len(mine),
                time_ns=time,
                share=ratio(time, whole),
                flops=total(work["flops"][mine]),
                bytes=total(work["operator_bytes"][mine]),
            )
        )
    return found


def sources(rows: Rows, count: int, accepts: Callable[[str], bool]) -> list[SourceUse]:
    """The accepted kernels, by function of the program, with the longest total time."""
    work = rows.where(rows.equal("class", event_table.COMPUTE, COMMUNICATION))
    whole = int(work.durations.sum())
    known = work.texts("name")
    work = work.where(work.equal("name", *(name for name in known if name and accepts(name))))
    return [
        SourceUse(
            source=source,
            kernel=kernel,
            count=len(mine),
            time_ns=time,
            share=ratio(time, whole),
        )
        for source, kernel, mine, time in _longest(work, "source", "name", count)
    ]


def _longest(
    work: Rows, first: str, second: str, count: int
) -> Iterator[tuple[str, str, Integers, int]]:
    """Yields pairs of texts with their rows and total time, longest first."""
    known = np.flatnonzero(~work.missing(first) & ~work.missing(second))
    pairs = np.stack([work.codes(name)[known] for name in (first, second)], 1)
    present, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    times = np.bincount(group, work.durations[known], len(present))
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(present) + 1))
    for number in np.argsort(-times, kind="stable")[:count].tolist():
        mine = known[order[edges[number] : edges[number + 1]]]
        one, other = (
            str(work.texts(name)[code])
            for name, code in zip((first, second), present[number], strict=True)
        )
        yield one, other, mine, int(work.durations[mine].sum())


def roofline_share(use: ShapeUse | KernelTime, roofline: "Roofline") -> float | None:
    """The least time that the machine needs for an operator or kernel, over the time it took.

    The least time is the longer of the arithmetic at the measured rate of its format and the traffic
    at the measured bandwidth (Williams et al., "Roofline", 2009). Products in fp32 may have run as
    TF32, which traces do not record: if the TF32 rate was measured, it counts. Null if work, format
    or ceilings are unknown.
    """
    bandwidth = max((m.bytes_per_second for m in roofline.memory), default=None)
    product = use.operator_class == CONTRACTION
    time = use.counted_ns if isinstance(use, KernelTime) else use.time_ns
    if not time or use.bytes is None or not bandwidth or (product and use.flops is None):
        return None
    seconds = use.bytes / bandwidth
    if product:
        formats = {"fp32": ("fp32", "tf32")}.get(use.number_format or "", (use.number_format,))
        rates = [m.flops_per_second for m in roofline.matrix if m.format in formats]
        known = [rate for rate in rates if rate]
        if not known:
            return None
        seconds = max(seconds, (use.flops or 0) / max(known))
    return seconds / (time * 1e-9)
