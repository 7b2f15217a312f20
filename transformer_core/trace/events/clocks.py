"""The clocks of the ranks, and windows of time on them.

Each rank has its own clock if Nsight Systems recorded it, or another host. All ranks are inside a
collective at the same time, so collectives tell how far their clocks are apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_core.trace.events.collectives import POINT_TO_POINT
from transformer_core.trace.events.columns import Integers
from transformer_core.trace.events.event_table import Events, Rows, rows_of


@dataclass(frozen=True)
class Offset:
    rank: int
    nanoseconds: int
    matched: int  # executions that were compared


def clock_offsets(work: Rows) -> list[Offset]:
    """The offsets of all ranks from the clock of the first; 0 if they agree or have no common
    collectives."""
    found: list[Offset] = []
    for rank, mine in work.parts("rank"):
        own = {
            (name, group): np.stack([mine["t0_ns"][places], mine["t1_ns"][places]])
            for name, group, places in mine.executions()
            if name not in POINT_TO_POINT
        }
        if not found:
            first = own
        pairs = [
            (first[key], own[key])
            for key in first.keys() & own.keys()
            if first[key].shape == own[key].shape
        ]
        if not found or not pairs:
            found.append(Offset(rank, 0, 0))
            continue
        (t0, t1), (begins, ends) = (
            np.concatenate(side, axis=1) for side in zip(*pairs, strict=True)
        )
        overlap = np.minimum(t1, ends) > np.maximum(t0, begins)
        agree = 2 * int(overlap.sum()) >= len(overlap)
        found.append(Offset(rank, 0 if agree else int(np.median(t1 - ends)), len(overlap)))
    return found


def unaligned(offsets: Sequence[Offset]) -> str | None:
    """A sentence on the ranks whose clocks nothing compares with that of the first; None if there are
    none."""
    alone = [str(offset.rank) for offset in offsets[1:] if not offset.matched]
    if not alone:
        return None
    ranks = f"rank {alone[0]} has" if not alone[1:] else f"ranks {', '.join(alone)} have"
    return (
        f"{ranks} no collective in common with rank {offsets[0].rank}, so their clocks are taken as "
        "equal: if they differ, as on other hosts, the same time is not the same moment"
    )


def length_ms(events: Events) -> float:
    """Milliseconds from the first event of any rank to the end of the last."""
    later, _ = behind(events)
    t0, t1 = (events.columns[name] + later for name in ("t0_ns", "t1_ns"))
    return float(t1.max() - t0.min()) / 1e6


def behind(events: Events) -> tuple[Integers, list[Offset]]:
    """For each event, how far its rank's clock is behind the first one's; and the offsets of all."""
    offsets = clock_offsets(rows_of(events).work)
    later, ranks = np.zeros(len(events), np.int64), events.columns["rank"]
    for offset in offsets:
        later[ranks == offset.rank] = offset.nanoseconds
    return later, offsets


_ENDLESS = 2**62


@dataclass(frozen=True)
class Window:
    """Milliseconds after the first event of any rank, at the same moment on the clocks of all ranks."""

    begin_ms: float | None = None
    end_ms: float | None = None

    def of(self, events: Events) -> Events:
        """The rows of an event table inside the window; rows across an edge are cut there.

        The time of a launch before the window does not change.
        """
        if (self.begin_ms is None and self.end_ms is None) or not len(events):
            return events
        t0, t1 = (events.columns[name] for name in ("t0_ns", "t1_ns"))
        ahead = -behind(events)[0]
        origin = (t0 - ahead).min() + ahead
        begin = origin + round((self.begin_ms or 0) * 1e6)
        end = _ENDLESS + ahead if self.end_ms is None else origin + round(self.end_ms * 1e6)
        moment = (t0 == t1) & (t0 >= begin) & (t0 < end)
        inside = moment | ((t1 > begin) & (t0 < end))
        found = events.where(inside)
        found.columns.replace("t0_ns", np.maximum(t0[inside], begin[inside]))
        found.columns.replace("t1_ns", np.minimum(t1[inside], end[inside]))
        return found


EVERYTHING = Window()
