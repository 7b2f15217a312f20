"""The tree of modules: what runs inside each, by phase, with its arithmetic and its memory."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from schemas.results.profile_details import LayerUse
from transformer_core.trace.events import phases
from transformer_core.trace.events.layers import SEPARATOR
from transformer_core.trace.events.rows import Mask, Rows
from transformer_core.trace.readers.columns import NULL, Integers

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
    """What each module owns itself."""
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
