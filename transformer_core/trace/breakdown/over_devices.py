"""The devices of all ranks taken together: the summary of a breakdown."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from schemas.results.profile_details import LayerUse, ShapeUse, StepBound, Straggler
from schemas.results.profiles import (
    CollectiveUse,
    DeviceBreakdown,
    ForwardBackward,
    OperatorClass,
    PhaseUse,
    ProfileSummary,
)
from transformer_core.trace.events.event_table import COMMUNICATION

Devices = Sequence[DeviceBreakdown]
Item = TypeVar("Item")


def summarise(
    devices: Devices,
    stragglers: Sequence[Straggler] = (),
    layers: Sequence[LayerUse] = (),
    shapes: Sequence[ShapeUse] = (),
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
        operators=operator_classes(devices),
        collectives=collectives(devices),
        phases=phases(devices),
        forward_backward=forward_backward(devices),
        stragglers=list(stragglers),
        bound=bound([device.bound for device in devices if device.bound]),
        layers=list(layers),
        shapes=list(shapes),
    )


def bound(parts: Sequence[StepBound]) -> StepBound | None:
    """What the steps wait for, summed over devices."""
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


def operator_classes(devices: Devices) -> list[OperatorClass]:
    """The classes of operators, summed over devices and steps."""
    groups = _grouped(devices, lambda device: device.operators, lambda use: use.operator_class)
    total = sum(use.time_ns for uses in groups.values() for use in uses)
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
                share=time / total if total else None,
                flops=flops,
                bytes=traffic,
                counted_ns=sum(use.counted_ns for use in counted),
                intensity=flops / traffic if flops is not None and traffic else None,
            )
        )
    return found


def collectives(devices: Devices) -> list[CollectiveUse]:
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


def phases(devices: Devices) -> list[PhaseUse]:
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


def forward_backward(devices: Devices) -> list[ForwardBackward]:
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
