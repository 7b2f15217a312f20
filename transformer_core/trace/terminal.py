"""A breakdown as text: a summary of all ranks, as wide as the terminal."""

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from textwrap import wrap
from typing import Any

from schemas.results.profiles import Breakdown, DeviceBreakdown, ProfileSummary
from transformer_core.trace.events.event_table import COMMUNICATION, COMPUTE

Row = Sequence[str]

_NARROWEST, _WIDEST = 60, 160
_COMMON = re.compile(
    r"^void |\(anonymous namespace\)::|\bat::native::|(?<=.)\((?:[^()]|\([^()]*\))*\)$"
)
"""Meaningless parts of most kernel names: return type, name spaces, parameters."""
_BOUNDS = {
    "device": "computation on the device",
    "link": "communication that no computation hides",
    "copies": "copies that nothing hides",
    "input": "the next batch, which the host is still fetching",
    "host": "the host, which launches work later than the device could begin it",
    "other": "latency, waits between streams, or launches missing from the trace",
}
PARTS = {
    "computation": "compute",
    "exposed communication": "exposed_communication",
    "exposed copies": "exposed_copies",
    "exposed CUDA graphs": "exposed_graphs",
    "idle": "idle",
}


def width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((100, 24)).columns))


def plain(text: str) -> str:
    """``text`` without control characters: names in traces are untrusted."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def bare(name: str) -> str:
    """A kernel name without return type, usual name spaces and parameters."""
    return _COMMON.sub("", name)


def short(name: str, room: int) -> str:
    """Shortens a name in the middle, since names differ at both ends."""
    name = plain(bare(name)).replace("\n", " ")
    begin, end = (room - 3) * 2 // 3, (room - 3) - (room - 3) * 2 // 3
    return name if len(name) <= room else f"{name[:begin]}...{name[-end:]}"


def table(heads: Row, rows: Sequence[Row]) -> list[str]:
    """Lines of a table of the terminal's width; the names in the first column take the space left."""
    sizes = [2 + max(len(row[k]) for row in [heads, *rows]) for k in range(1, len(heads))]
    longest = max(len(plain(bare(row[0]))) for row in [heads, *rows])
    room = max(8, min(width() - sum(sizes), longest))

    def line(row: Row) -> str:
        others = "".join(f"{cell:>{size}}" for cell, size in zip(row[1:], sizes, strict=True))
        return f"{short(row[0], room):<{room}}{others}".rstrip()

    return [line(heads), *map(line, rows)]


def page(breakdown: Breakdown, top: int) -> str:
    """The main numbers of all ranks, and how ranks differ; lists have at most ``top`` rows."""
    found = breakdown.summary
    lines = [f"{breakdown.name}: {breakdown.status}"]
    if breakdown.reason:
        lines.append(breakdown.reason)
    if found and breakdown.devices:
        lines = _sentence(_headline(breakdown, found))
        devices = breakdown.devices
        for section in (
            _partition(found),
            _phases(breakdown, found),
            _work(devices, top),
            _collectives(devices, found),
            _kernels(devices, top),
            _compiled(devices, top),
            _graphs(devices, top),
            _sources(devices, found, top),
            _ranks(devices, found, top),
        ):
            lines += ["", *section] if section else []
        lines += [""] * bool(breakdown.notes)
    lines += [line for note in breakdown.notes for line in _sentence(f"note: {note}")]
    return plain("\n".join(lines))


def _sentence(text: str) -> list[str]:
    return wrap(text, width(), break_long_words=False, break_on_hyphens=False)


def _ms(nanoseconds: float | None, over: int = 1) -> str:
    return "-" if nanoseconds is None else f"{nanoseconds / over / 1e6:,.3f}"


def _count(events: int, devices: int) -> str:
    """The mean number of events of a device; some devices may have one more than others."""
    return f"{events / devices:,.1f}".removesuffix(".0")


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def _grouped(uses: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for name, use in uses:
        found[name].append(use)
    return found


def _headline(breakdown: Breakdown, found: ProfileSummary) -> str:
    devices = breakdown.devices
    ranks = sorted({device.rank for device in devices})
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    names = sorted({device.device for device in devices})
    who += f" on {names[0]}" if len(names) == 1 else f" on {len(devices)} devices"
    steps = max(len(device.steps) for device in devices)
    took = f"{found.step_seconds * 1e3:,.3f} ms"
    if not steps:
        return f"{breakdown.name}: {who}, the whole trace, {took} (it marks no steps)"
    same = _grouped(
        (str(step.step), step.partition.window_ns) for device in devices for step in device.steps
    )
    lengths = [sum(each) / len(each) for each in same.values()]
    text = f"{breakdown.name}: {who}, {steps} step{'s' * (steps > 1)} of {took}"
    if steps > 1:
        least, middle, most = _ms(min(lengths)), _ms(median(lengths)), _ms(max(lengths))
        text += f" (shortest {least}, median {middle}, longest {most})"
    return text


def _partition(found: ProfileSummary) -> list[str]:
    rows, room = [], width() // 4
    for name, field in PARTS.items():
        part = getattr(found, field)
        if part:
            time = f"{part * found.step_seconds * 1e3:,.3f}"
            rows.append((name, time, _share(part), "#" * round(part * room)))
    lines = table(("wall time", "ms", "share", ""), [(*row[:3], "") for row in rows])
    lines[1:] = [f"{line}   {row[3]}".rstrip() for line, row in zip(lines[1:], rows, strict=True)]
    if found.hidden_communication is not None:
        lines.append(f"{_share(found.hidden_communication)} of communication is hidden")
    if found.bound and found.bound.window_ns:
        verdict = found.bound.verdict
        part = getattr(found.bound, f"{verdict}_ns") / found.bound.window_ns
        lines += _sentence(f"Bound by {_BOUNDS[verdict]}: {_share(part)} of the time")
    return lines


def _phases(breakdown: Breakdown, found: ProfileSummary) -> list[str]:
    units = breakdown.device_steps
    times = ("host_ns", "busy_ns", "compute_ns", "communication_ns")
    rows = [
        (use.phase, *(_ms(getattr(use, time), units) for time in times)) for use in found.phases
    ]
    heads = ("phase, ms of a step", "host", "device", "computation", "communication")
    return table(heads, rows) if rows else []


def _work(devices: Sequence[DeviceBreakdown], top: int) -> list[str]:
    found = _grouped(
        (use.name if use.name.startswith(use.kind) else f"{use.kind} {use.name}", use)
        for device in devices
        for use in device.activities
    )
    whole = sum(use.time_ns for uses in found.values() for use in uses)
    rows = _by_time(found, whole, len(devices))[:top]
    return table(("work of a device", "count", "ms", "of device time"), rows)


def _by_time(found: dict[str, list], whole: int, devices: int) -> list[Row]:
    """Name, count and time of a device, and share; longest first."""
    times = {name: sum(use.time_ns for use in uses) for name, uses in found.items()}
    return [
        (
            name,
            _count(sum(use.count for use in found[name]), devices),
            _ms(times[name], devices),
            _share(times[name] / whole if whole else None),
        )
        for name in sorted(times, key=lambda name: -times[name])
    ]


def _listed(heads: Row, rows: Sequence[Row], top: int) -> list[str]:
    lines = table(heads, rows[:top]) if rows else []
    return [*lines, f"and {len(rows) - top:,} more"] if len(rows) > top else lines


def _kernels(devices: Sequence[DeviceBreakdown], top: int) -> list[str]:
    """The longest kernels of all devices, with their shares of the time of all kernels and, if known
    and the terminal is wide enough, their rates."""
    found = _grouped((use.name, use) for device in devices for use in device.kernel_times)
    whole = sum(
        use.time_ns
        for device in devices
        for use in device.activities
        if use.kind in (COMPUTE, COMMUNICATION)
    )
    rows = _by_time(found, whole, len(devices))
    rates = {
        "TFLOP/s": lambda use: use.flops and use.flops / 1000,
        "GB/s": lambda use: use.bytes,
        "of ceiling": lambda use: use.roofline_share and use.roofline_share * use.counted_ns,
    }
    heads = ["operator" if all(device.device == "cpu" for device in devices) else "kernel"]
    heads += ["count", "ms", "of their time"]
    others = zip(heads[1:], *(row[1:] for row in rows[:top]), strict=True)
    room = width() - 20 - sum(max(map(len, cells)) + 2 for cells in others)
    for title, amount in rates.items():
        told = [_rate(found[row[0]], amount) for row in rows[:top]]
        form = "{:.0%}" if title == "of ceiling" else "{:,.3g}"
        cells = ["-" if one is None else form.format(one) for one in told]
        room -= max(map(len, [title, *cells])) + 2
        if any(told) and room >= 0:
            heads.append(title)
            rows[:top] = [(*row, cell) for row, cell in zip(rows, cells, strict=False)]
    return _listed(heads, rows, top)


def _rate(uses: list, amount: Callable[[Any], float | None]) -> float | None:
    """An amount per nanosecond of the counted executions; null if any is unknown."""
    parts = [amount(use) for use in uses if use.counted_ns]
    time = sum(use.counted_ns for use in uses)
    return None if None in parts or not time else sum(part or 0 for part in parts) / time


def _compiled(devices: Sequence[DeviceBreakdown], top: int) -> list[str]:
    """The operators inside kernels of TorchInductor; a kernel counts for each of its operators."""
    found = _grouped(
        (operator, use)
        for device in devices
        for use in device.kernel_times
        for operator in dict.fromkeys(use.operators)
    )
    rows = [row[:3] for row in _by_time(found, 0, len(devices))]
    return _listed(("operator in compiled kernels", "count", "ms"), rows, top)


def _graphs(devices: Sequence[DeviceBreakdown], top: int) -> list[str]:
    rows = []
    for device in devices:
        for use in device.graphs:
            name = "unknown" if use.graph is None else f"{use.graph}"
            name = f"{name} on rank {device.rank} {device.device}"
            longest = use.nodes[0].name if use.nodes else ""
            counts = (f"{number:,}" for number in (use.launches, use.events))
            rows.append((f"{name}: {longest}" if longest else name, *counts, _ms(use.time_ns)))
    heads = ("CUDA graph, and its longest node", "launches", "events", "ms")
    return _listed(heads, rows, top)


def _sources(devices: Sequence[DeviceBreakdown], found: ProfileSummary, top: int) -> list[str]:
    """Two lines per pair: the function and, below it, the kernel that it launched."""
    lines = []
    for use in found.sources[:top]:
        time = f"{_ms(use.time_ns, len(devices))} ms {_share(use.share)}"
        room = width() - len(time) - 2
        lines.append(f"{short(use.source, room):<{room}}  {time}")
        lines.append(f"  {short(use.kernel, width() - 2)}")
    return ["launched by", *lines] if lines else []


def _collectives(devices: Sequence[DeviceBreakdown], found: ProfileSummary) -> list[str]:
    rows = [
        (
            use.collective,
            _count(use.count, len(devices)),
            *(_ms(time, len(devices)) for time in (use.time_ns, use.transfer_ns, use.waiting_ns)),
            "-" if use.bus_bandwidth is None else f"{use.bus_bandwidth / 1e9:,.1f}",
        )
        for use in found.collectives
    ]
    heads = ("collective", "count", "ms", "transfer", "waiting", "GB/s")
    return table(heads, rows) if rows else []


def _ranks(devices: Sequence[DeviceBreakdown], found: ProfileSummary, top: int) -> list[str]:
    """Differences between ranks: the share of collectives at which each came last, and the time per
    step that the others waited for it; if not all fit, those that cost the others most."""
    if len(devices) < 2:
        return []
    late = {one.rank: one for one in found.stragglers}
    rows = []
    for device in devices:
        whole, one = device.profiled, late.get(device.rank)
        steps = max(1, len(device.steps))
        shares = (whole.compute_ns, whole.exposed_communication_ns, whole.idle_ns)
        row = (
            f"{device.rank} {device.device}",
            _ms(whole.window_ns, steps),
            *(_share(part / whole.window_ns if whole.window_ns else None) for part in shares),
            _share(one.share if one else None),
            _ms(one.caused_ns if one else None, steps),
        )
        rows.append((one.caused_ns if one else 0, whole.window_ns, row))
    if (more := len(rows) - top) > 0:
        rows.sort(key=lambda entry: entry[:2], reverse=True)
    heads = ("rank", "step ms", "compute", "comm.", "idle", "last", "delay ms")
    lines = table(heads, [row for *_, row in rows[:top]])
    return [*lines, f"and {more:,} more, which cost the others less"] if more > 0 else lines
