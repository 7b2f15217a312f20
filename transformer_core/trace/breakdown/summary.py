"""All devices of all ranks together: the summary of a breakdown, the tree of modules, and operators by
the shapes of their inputs with the share of the roofline that each reaches.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from schemas.results.profile_details import (
    KernelTime,
    LayerUse,
    ShapeUse,
    SourceUse,
    StepBound,
    Straggler,
)
from schemas.results.profiles import (
    CollectiveUse,
    DeviceBreakdown,
    ForwardBackward,
    OperatorClass,
    PhaseUse,
    ProfileSummary,
)
from transformer_core.trace.events import event_table, phases
from transformer_core.trace.events.columns import NULL, Integers
from transformer_core.trace.events.event_table import COMMUNICATION, Mask, Rows, total
from transformer_core.trace.events.layers import SEPARATOR
from transformer_core.trace.events.operators import CONTRACTION, FORMATS

Devices = Sequence[DeviceBreakdown]
Item = TypeVar("Item")


def summarise(
    devices: Devices,
    stragglers: Sequence[Straggler] = (),
    layers: Sequence[LayerUse] = (),
    shapes: Sequence[ShapeUse] = (),
    sources: Sequence[SourceUse] = (),
) -> ProfileSummary | None:
    """The summary of the devices of a profile; null if there is none."""
    if not devices:
        return None
    steps = sum(max(1, len(device.steps)) for device in devices)
    window = sum(device.profiled.window_ns for device in devices)
    activities = [activity for device in devices for activity in device.activities]
    span = sum(device.span.window_ns for device in devices)
    return ProfileSummary(
        step_seconds=window / 1e9 / steps,
        compute=_share(devices, "compute_ns"),
        exposed_communication=_share(devices, "exposed_communication_ns"),
        exposed_copies=_share(devices, "exposed_copies_ns"),
        exposed_graphs=_share(devices, "exposed_graphs_ns"),
        idle=_share(devices, "idle_ns"),
        overlap=_share(devices, "overlap_ns"),
        hidden_communication=_share(devices, "overlap_ns", of="communication_ns"),
        communication_of_device_time=_ratio(
            sum(a.time_ns for a in activities if a.kind == COMMUNICATION),
            sum(a.time_ns for a in activities),
        ),
        host_bound=_ratio(_sum([device.host_bound_ns for device in devices]), span),
        operators=_operator_classes(devices),
        collectives=_all_collectives(devices),
        phases=_all_phases(devices),
        forward_backward=_forward_backward(devices),
        stragglers=list(stragglers),
        bound=_bound([device.bound for device in devices if device.bound]),
        layers=list(layers),
        shapes=list(shapes),
        sources=list(sources),
    )


def _bound(parts: Sequence[StepBound]) -> StepBound | None:
    """The waits of the steps, summed over devices."""
    if not parts:
        return None
    names = StepBound.model_fields
    return StepBound(**{name: sum(getattr(part, name) for part in parts) for name in names})


def _share(devices: Devices, part: str, of: str = "window_ns") -> float | None:
    """A part of the profiled time over another, over all devices."""
    parts = _sum([getattr(device.profiled, part) for device in devices])
    return _ratio(parts, sum(getattr(device.profiled, of) for device in devices))


def _ratio(part: int | None, whole: int) -> float | None:
    return part / whole if part is not None and whole else None


def _operator_classes(devices: Devices) -> list[OperatorClass]:
    """The classes of operators, summed over devices and steps."""
    groups = _grouped(devices, lambda device: device.operators, lambda use: use.operator_class)
    whole = sum(use.time_ns for uses in groups.values() for use in uses)
    found = []
    for name, uses in groups.items():
        time = sum(use.time_ns for use in uses)
        counted = [use for use in uses if use.flops is not None]
        flops, traffic = (
            _sum([use.flops for use in counted]),
            _sum([use.bytes for use in counted]),
        )
        found.append(
            OperatorClass(
                operator_class=name,
                count=sum(use.count for use in uses),
                time_ns=time,
                share=time / whole if whole else None,
                flops=flops,
                bytes=traffic,
                counted_ns=sum(use.counted_ns for use in counted),
                intensity=flops / traffic if flops is not None and traffic else None,
            )
        )
    return found


def _all_collectives(devices: Devices) -> list[CollectiveUse]:
    """The collectives by kind, summed over devices and steps; the bus bandwidth is their mean."""
    groups = _grouped(devices, lambda device: device.collectives, lambda use: use.collective)
    found = []
    for name, uses in groups.items():
        found.append(
            CollectiveUse(
                collective=name,
                count=sum(use.count for use in uses),
                bytes=_sum([use.bytes for use in uses]),
                time_ns=sum(use.time_ns for use in uses),
                union_ns=sum(use.union_ns for use in uses),
                transfer_ns=_sum([use.transfer_ns for use in uses]),
                waiting_ns=_sum([use.waiting_ns for use in uses]),
                bus_bandwidth=_mean([use.bus_bandwidth for use in uses]),
            )
        )
    return found


def _all_phases(devices: Devices) -> list[PhaseUse]:
    """The phases of the step, summed over devices and steps."""
    groups = _grouped(devices, lambda device: device.phases, lambda use: use.phase)
    return [
        PhaseUse(
            phase=name,
            host_ns=_sum([use.host_ns for use in uses]),
            busy_ns=sum(use.busy_ns for use in uses),
            compute_ns=sum(use.compute_ns for use in uses),
            communication_ns=sum(use.communication_ns for use in uses),
            copies_ns=_sum([use.copies_ns for use in uses]),
        )
        for name, uses in groups.items()
    ]


def _forward_backward(devices: Devices) -> list[ForwardBackward]:
    """Backward against forward by group of operators, summed over devices and steps."""
    groups = _grouped(devices, lambda device: device.forward_backward, lambda use: use.operators)
    found = []
    for name, uses in groups.items():
        forward = sum(use.forward_ns for use in uses)
        backward = sum(use.backward_ns for use in uses)
        found.append(
            ForwardBackward(
                operators=name,
                forward_ns=forward,
                backward_ns=backward,
                ratio=backward / forward if forward and backward else None,
                flops_ratio=_mean([use.flops_ratio for use in uses]),
                bytes_ratio=_mean([use.bytes_ratio for use in uses]),
            )
        )
    return found


def _grouped(
    devices: Devices,
    uses: Callable[[DeviceBreakdown], Iterable[Item]],
    name: Callable[[Item], str],
) -> dict[str, list[Item]]:
    groups: defaultdict[str, list[Item]] = defaultdict(list)
    for device in devices:
        for use in uses(device):
            groups[name(use)].append(use)
    return dict(groups)


def _sum(values: Sequence[int | None]) -> int | None:
    """The sum; null if there is no value, or one of them is null."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; null likewise."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


_PHASES = ("forward", "backward", "other")


@dataclass
class _Sums:
    own: int = 0
    times: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0))
    flops: int | None = None
    bytes: int | None = None


def layers(rows: Rows) -> list[LayerUse]:
    """The modules of an event table, parents before what is in them, in the order in which they
    run; empty if nothing ran inside a module."""
    work = rows.work
    if not (~work.missing("layer")).any():
        return []
    sums: defaultdict[str, _Sums] = defaultdict(_Sums)
    for path, own in _by_path(work).items():
        sums[path].own = sum(own.times.values())
        for outer in _outer(path):
            _add(sums[outer], own)
    calls, held = _calls(rows.where(rows.equal("kind", "module")))
    first = _first_begins(rows.where(~rows.missing("layer")))
    order = sorted(sums, key=lambda path: [first.get(outer, 0) for outer in _outer(path)])
    return [
        LayerUse(
            path=path,
            calls=calls.get(path),
            forward_ns=sums[path].times["forward"],
            backward_ns=sums[path].times["backward"],
            other_ns=sums[path].times["other"],
            own_ns=sums[path].own,
            flops=sums[path].flops,
            bytes=sums[path].bytes,
            held_bytes=held.get(path),
        )
        for path in order
    ]


def _outer(path: str) -> list[str]:
    """A path and those of the modules around it, outermost first."""
    names = path.split(SEPARATOR)
    return [SEPARATOR.join(names[: k + 1]) for k in range(len(names))]


def _by_path(work: Rows) -> dict[str, _Sums]:
    """The time that belongs to each module itself."""
    forward = work.equal("phase", phases.FORWARD, phases.LOSS)
    backward = work.equal("phase", phases.BACKWARD)
    found = {}
    for path, mine in work.groups("layer").items():
        times, own = work.durations[mine], _Sums()
        for name, phase in zip(_PHASES, (forward, backward, ~(forward | backward)), strict=True):
            own.times[name] = int(times[phase[mine]].sum())
        own.flops = _known(work["flops"][mine])
        own.bytes = _known(work["operator_bytes"][mine])
        found[path] = own
    return found


def _known(values: Integers) -> int | None:
    values = values[values != NULL]
    return int(values.sum()) if len(values) else None


def _add(sums: _Sums, own: _Sums) -> None:
    for name in _PHASES:
        sums.times[name] += own.times[name]
    if own.flops is not None:
        sums.flops = (sums.flops or 0) + own.flops
    if own.bytes is not None:
        sums.bytes = (sums.bytes or 0) + own.bytes


def _calls(modules: Rows) -> tuple[dict[str, int], dict[str, int]]:
    """By path, how often it was called, and what its calls in forward leave allocated."""
    inside: Mask = ~modules.equal("phase", phases.BACKWARD) & (modules["bytes"] != NULL)
    groups = modules.groups("layer")
    held = {
        path: int(modules["bytes"][mine][inside[mine]].sum())
        for path, mine in groups.items()
        if inside[mine].any()
    }
    return {path: len(mine) for path, mine in groups.items()}, held


def _first_begins(rows: Rows) -> dict[str, int]:
    """When each module is first met; those around another before it."""
    found: dict[str, int] = {}
    begins = rows["launch_ns"]
    begins = np.where(begins == NULL, rows["t0_ns"], begins)
    for path, mine in rows.groups("layer").items():
        begin = int(begins[mine].min())
        for outer in _outer(path):
            found[outer] = min(begin, found.get(outer, begin))
    return found


if TYPE_CHECKING:
    from schemas.results.machine import Roofline

SHAPES_SHOWN = 20


def shapes(rows: Rows, count: int = SHAPES_SHOWN) -> list[ShapeUse]:
    """The operators with inputs of the same shapes that take longest in all."""
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
                share=time / whole if whole else None,
                flops=total(work["flops"][mine]),
                bytes=total(work["operator_bytes"][mine]),
            )
        )
    return found


def sources(rows: Rows, count: int = SHAPES_SHOWN) -> list[SourceUse]:
    """The kernels of each function of the program that take longest in all."""
    work = rows.where(rows.equal("class", event_table.COMPUTE, COMMUNICATION))
    whole = int(work.durations.sum())
    return [
        SourceUse(
            source=source,
            kernel=kernel,
            count=len(mine),
            time_ns=time,
            share=time / whole if whole else None,
        )
        for source, kernel, mine, time in _longest(work, "source", "name", count)
    ]


def _longest(
    work: Rows, first: str, second: str, count: int
) -> Iterator[tuple[str, str, Integers, int]]:
    """Pairs of texts that rows have in common, with the rows and their time, longest first."""
    known = np.flatnonzero(~work.missing(first) & ~work.missing(second))
    pairs = np.stack([work.columns[name][known] for name in (first, second)], 1)
    present, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    times = np.bincount(group, work.durations[known], len(present))
    for number in np.argsort(-times, kind="stable")[:count].tolist():
        mine = known[group == number]
        texts = (work.texts[n][k] for n, k in zip((first, second), present[number], strict=True))
        yield *map(str, texts), mine, int(work.durations[mine].sum())


def roofline_share(use: ShapeUse | KernelTime, roofline: "Roofline") -> float | None:
    """Least time that the machine needs for the work of an operator or kernel, over the time it took.

    The least is the longer of the arithmetic at the measured rate of its format and the traffic at
    the measured bandwidth (Williams et al., "Roofline", 2009). Products of fp32 may have run as
    TF32, which the trace does not tell: where that was measured, its rate counts. Null where work,
    format or ceilings are unknown.
    """
    bandwidth = max((m.bytes_per_second for m in roofline.memory), default=None)
    product = use.operator_class == CONTRACTION
    if not use.time_ns or use.bytes is None or not bandwidth or (product and use.flops is None):
        return None
    seconds = use.bytes / bandwidth
    if product:
        formats = {"fp32": ("fp32", "tf32")}.get(use.number_format or "", (use.number_format,))
        rates = [m.flops_per_second for m in roofline.matrix if m.format in formats]
        known = [rate for rate in rates if rate]
        if not known:
            return None
        seconds = max(seconds, (use.flops or 0) / max(known))
    return seconds / (use.time_ns * 1e-9)
