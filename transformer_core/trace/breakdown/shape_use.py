"""Operators by the shapes of their inputs, and how much of the roofline each reaches."""

from typing import TYPE_CHECKING

import numpy as np

from schemas.results.profile_details import ShapeUse
from transformer_core.trace.events import event_table
from transformer_core.trace.events.rows import Rows
from transformer_core.trace.operators.operator_classes import CONTRACTION, FORMATS
from transformer_core.trace.readers.columns import NULL

if TYPE_CHECKING:
    from schemas.results.machine import Roofline

SHAPES_SHOWN = 20


def shapes(rows: Rows, count: int = SHAPES_SHOWN) -> list[ShapeUse]:
    """The operators with inputs of the same shapes that take longest in all."""
    work = rows.where(rows.equal("class", event_table.COMPUTE))
    whole = int(work.durations.sum())
    known = np.flatnonzero(~work.missing("shapes") & ~work.missing("operator"))
    pairs = np.stack([work.columns[name][known] for name in ("operator", "shapes")], 1)
    _, first, group = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    times = np.bincount(group, work.durations[known], len(first))
    found = []
    for number in np.argsort(-times, kind="stable")[:count].tolist():
        mine = known[group == number]
        one = int(mine[0])
        text = str(work["shapes"][one])
        head, _, rest = text.partition(" ")
        flops, traffic = work["flops"][mine], work["operator_bytes"][mine]
        time = int(work.durations[mine].sum())
        found.append(
            ShapeUse(
                operator=str(work["operator"][one]),
                shapes=rest if head in FORMATS else text,
                number_format=head if head in FORMATS else None,
                operator_class=work["operator_class"][one],
                count=len(mine),
                time_ns=time,
                share=time / whole if whole else None,
                flops=None if (flops == NULL).any() else int(flops.sum()),
                bytes=None if (traffic == NULL).any() else int(traffic.sum()),
            )
        )
    return found


def roofline_share(use: ShapeUse, roofline: "Roofline") -> float | None:
    """Least time that the machine needs for the work of an operator, over the time it took.

    The least is the longer of the arithmetic at the measured rate of its format and the traffic at
    the measured bandwidth (Williams et al., "Roofline", 2009). Products of fp32 may have run as
    TF32, which the trace does not tell: where that was measured, its rate counts. Null where work,
    format or ceilings are unknown.
    """
    bandwidth = max((m.bytes_per_second for m in roofline.memory), default=None)
    if not use.time_ns or use.bytes is None or use.flops is None or not bandwidth:
        return None
    seconds = use.bytes / bandwidth
    if use.operator_class == CONTRACTION:
        formats = {"fp32": ("fp32", "tf32")}.get(use.number_format or "", (use.number_format,))
        rates = [m.flops_per_second for m in roofline.matrix if m.format in formats]
        known = [rate for rate in rates if rate]
        if not known:
            return None
        seconds = max(seconds, use.flops / max(known))
    return seconds / (use.time_ns * 1e-9)
