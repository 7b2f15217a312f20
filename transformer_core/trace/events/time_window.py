"""A stretch of a trace: what lies in it, cut at its edges."""

from dataclasses import dataclass

import numpy as np

from transformer_core.trace.events.event_table import Events

_ENDLESS = 2**62


@dataclass(frozen=True)
class Window:
    """Milliseconds after the first event of any rank."""

    begin_ms: float | None = None
    end_ms: float | None = None

    def of(self, events: Events) -> Events:
        """The rows of an event table that lie in it, those across an edge in part.

        A launch before the window stays as it is: the event was launched then.
        """
        if (self.begin_ms is None and self.end_ms is None) or not len(events):
            return events
        t0, t1 = (events.columns[name] for name in ("t0_ns", "t1_ns"))
        origin = int(t0.min())
        begin = origin + round((self.begin_ms or 0) * 1e6)
        end = _ENDLESS if self.end_ms is None else origin + round(self.end_ms * 1e6)
        moment = (t0 == t1) & (t0 >= begin) & (t0 < end)
        inside = moment | ((t1 > begin) & (t0 < end))
        found = events.where(inside)
        found.columns.replace("t0_ns", np.maximum(t0[inside], begin))
        found.columns.replace("t1_ns", np.minimum(t1[inside], end))
        return found


EVERYTHING = Window()
