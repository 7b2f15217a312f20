"""A stretch of a trace: what lies in it, cut at its edges."""

from dataclasses import dataclass

import pyarrow as pa

from transformer_core.profiling.events.event_table import SCHEMA

_ENDLESS = 2**62


@dataclass(frozen=True)
class Window:
    """Milliseconds after the first event of any rank."""

    begin_ms: float | None = None
    end_ms: float | None = None

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of an event table that lie in it, those across an edge in part.

        A launch before the window stays as it is: the event was launched then.
        """
        if (self.begin_ms is None and self.end_ms is None) or not table.num_rows:
            return table
        import pyarrow.compute as pc  # takes long to import, and few ask for a window

        origin = pc.min(table.column("t0_ns")).as_py()
        begin = origin + round((self.begin_ms or 0) * 1e6)
        end = _ENDLESS if self.end_ms is None else origin + round(self.end_ms * 1e6)
        t0, t1 = table.column("t0_ns"), table.column("t1_ns")
        moment = pc.and_(pc.equal(t0, t1), pc.and_(pc.greater_equal(t0, begin), pc.less(t0, end)))
        inside = pc.or_(moment, pc.and_(pc.greater(t1, begin), pc.less(t0, end)))
        for name, cut in (("t0_ns", pc.max_element_wise), ("t1_ns", pc.min_element_wise)):
            place = SCHEMA.get_field_index(name)
            edge = begin if name == "t0_ns" else end
            column = cut(table.column(name), pa.scalar(edge, pa.int64()))
            table = table.set_column(place, SCHEMA.field(name), column)
        return table.filter(inside)


EVERYTHING = Window()
