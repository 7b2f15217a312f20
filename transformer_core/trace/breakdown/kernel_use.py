"""Time by what a viewer would group, and by kernel."""

import re
from dataclasses import dataclass

import numpy as np

from schemas.results.profile_details import KernelTime
from schemas.results.profiles import Activity
from transformer_core.trace.events import event_table
from transformer_core.trace.events.rows import Rows, total

KERNELS_SHOWN = 10
"""Kernels that a breakdown lists by name."""


@dataclass(frozen=True)
class KernelChoice:
    """Which kernels are listed: so many, of those whose names hold a match of ``pattern``."""

    count: int = KERNELS_SHOWN
    pattern: str = ""

    def accepts(self, name: str) -> bool:
        """Whether one may be listed."""
        return bool(re.search(self.pattern, name))


LONGEST = KernelChoice()


def activities(rows: Rows) -> list[Activity]:
    """Time by what a viewer would group: collectives, classes of operators, kinds of copies."""
    durations, whole = rows.durations, int(rows.durations.sum())
    columns = {
        event_table.COMMUNICATION: "collective",
        event_table.COMPUTE: "operator_class",
        event_table.MEMCPY: "copy_kind",
    }
    found = []
    for kind in event_table.CLASSES:
        place = np.flatnonzero(rows.equal("class", kind))
        mine = rows.where(place)
        groups = mine.groups(columns.get(kind, "name"))
        if (unnamed := mine.missing(columns.get(kind, "name"))).any():
            groups["unknown"] = np.flatnonzero(unnamed)
        for name, inside in groups.items():
            time = int(durations[place[inside]].sum())
            found.append(
                Activity(
                    name=name,
                    kind=kind,
                    count=len(inside),
                    time_ns=time,
                    share=time / whole if whole else None,
                    bytes=total(mine["bytes"][inside]),
                )
            )
    return sorted(found, key=lambda activity: -activity.time_ns)


def kernel_times(rows: Rows, choice: KernelChoice = LONGEST) -> list[KernelTime]:
    """The kernels that run longest in all, or on a CPU the operators."""
    rows = rows.where(rows.equal("class", event_table.COMPUTE, event_table.COMMUNICATION))
    durations, kinds = rows.durations, rows["class"]
    whole = int(durations.sum())
    found = [
        KernelTime(
            name=name,
            kind=kinds[mine[0]],
            count=len(mine),
            time_ns=int(durations[mine].sum()),
            shortest_ns=int(durations[mine].min()),
            longest_ns=int(durations[mine].max()),
            share=float(durations[mine].sum() / whole) if whole else None,
        )
        for name, mine in rows.groups("name").items()
        if choice.accepts(name)
    ]
    return sorted(found, key=lambda kernel: -kernel.time_ns)[: choice.count]
