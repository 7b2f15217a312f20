"""The program ``trace memory FILE… --output MEMORY.svg``: the allocated memory of each device over time
with its peak, above the phases of the host.
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from transformer_core.common.files import write_text
from transformer_core.trace.arguments import read_and_output, writing
from transformer_core.trace.breakdown.devices import runs
from transformer_core.trace.events import phases
from transformer_core.trace.events.event_table import Rows, rows_of
from transformer_core.trace.events.intervals import Innermost
from transformer_core.trace.events.process import TraceError
from transformer_core.trace.terminal import plain

_WIDTH, _HEIGHT, _LEFT, _STRIP = 900, 180, 80, 14
_COLOURS = ("#9ecae1", "#a1d99b", "#fdd0a2", "#dadaeb", "#fcbba1")
"""Colours of the phases, in order."""


def series(rows: Rows) -> list[Rows]:
    """The memory events of each device of each rank, in order of time."""
    memory = rows.where(rows.equal("kind", "memory"))
    memory = memory.where(np.argsort(memory["t0_ns"], kind="stable"))
    return [mine for _, device in memory.parts("device") for _, mine in device.parts("rank")]


def most(rows: Rows, one: Rows) -> str:
    """The peak of a device: its size, time, phase and module."""
    place, rank = int(np.argmax(one["bytes"])), int(one["rank"][0])
    time = one["t0_ns"][[place]]
    told = [f"{_size(int(one['bytes'][place]))} at {time[0] / 1e6:.3f} ms"]
    for kind, column, word in (("range", "phase", "during"), ("module", "layer", "in")):
        marks = rows.where(rows.equal("kind", kind) & (rows["rank"] == rank))
        marks = marks.where(~marks.missing(column))
        if (owner := int(Innermost(marks["t0_ns"], marks["t1_ns"]).at(time)[0])) >= 0:
            told.append(f"{word} {marks[column][owner]}")
    return f"rank {rank} {one['device'][0]}: most {' '.join(told)}"


def _size(size: int) -> str:
    size = round(float(f"{size:.3g}"))  # of 999,600 bytes, 1 MB
    power = next((power for power in (9, 6, 3) if size >= 10**power), 0)
    return f"{size / 10**power:,.3g} { ({9: 'G', 6: 'M', 3: 'k', 0: ''}[power]) }B"


def draw(rows: Rows, found: Sequence[Rows]) -> str:
    begin, end = int(rows["t0_ns"].min()), int(rows["t1_ns"].max())
    scale = (_WIDTH - _LEFT) / max(1, end - begin)
    height = (_HEIGHT + _STRIP + 40) * len(found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 20} {height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for number, one in enumerate(found):
        lines.append(f'<g transform="translate(0 {number * (_HEIGHT + _STRIP + 40) + 24})">')
        lines += _device(rows, one, begin, end, scale)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _device(rows: Rows, one: Rows, begin: int, end: int, scale: float) -> Iterator[str]:
    times, sizes = one["t0_ns"], one["bytes"]
    top = max(1, int(sizes.max()))
    # For each column of pixels, only the first, least, largest and last value.
    column = ((times - begin) * scale).astype(np.int64)
    chosen = []
    for _, first, last in runs(column, 0, len(column)):
        part = sizes[first:last]
        chosen += sorted({first, first + int(part.argmin()), first + int(part.argmax()), last - 1})
    path: list[str] = []
    for place in chosen:
        x, share = _LEFT + (int(times[place]) - begin) * scale, int(sizes[place]) / top
        y = _HEIGHT * (1 - share)
        path.append(f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}")
    path.append(f"H{_WIDTH}")
    yield f'<text x="{_LEFT}" y="-8">{escape(plain(most(rows, one)))}</text>'
    for share in (0, 0.5, 1):
        y = _HEIGHT * (1 - share)
        yield f'<path d="M{_LEFT} {y}H{_WIDTH}" stroke="#ccc"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{_size(round(top * share))}</text>'
    yield f'<path d="{"".join(path)}" fill="none" stroke="#08519c"/>'
    marks = rows.where(rows.equal("kind", "range") & (rows["rank"] == one["rank"][0]))
    for t0, t1, name in zip(*(each.tolist() for each in phases.stretches(marks)), strict=True):
        x, wide = _LEFT + (t0 - begin) * scale, (t1 - t0) * scale
        if wide > 0.2:
            colour = _COLOURS[phases.PHASES.index(name)]
            yield (
                f'<rect x="{x:.1f}" y="{_HEIGHT + 4}" width="{wide:.1f}" height="{_STRIP}" '
                f'fill="{colour}"><title>{name}</title></rect>'
            )
    yield f'<text x="{_WIDTH}" y="{_HEIGHT + _STRIP}" text-anchor="end">{(end - begin) / 1e6:,.1f} ms</text>'


def main(arguments: Sequence[str]) -> int:
    files, events, output = read_and_output(
        "memory",
        "Draw the allocated memory of every device over time. torch.profiler records it with "
        "profile_memory=True, Nsight Systems with --cuda-memory-usage=true.",
        "memory.svg",
        arguments,
    )
    rows = rows_of(events)
    if not (found := series(rows)):
        remedy = (
            "record with profile_memory=True, or nsys profile --cuda-memory-usage=true; "
            "check --from and --to"
        )
        raise TraceError(files[0], "contains no memory events", remedy)
    if output == Path("-"):
        print(draw(rows, found), end="")
        return 0
    with writing(output):
        write_text(output, draw(rows, found))
    print(plain("\n".join([*(most(rows, one) for one in found), f"{output}: the figure"])))
    return 0
