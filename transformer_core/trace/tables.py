"""Traces as tables of pandas, for notebooks: ``tables = read_files(["traces/"])``.

Times are nanoseconds, as in a breakdown; :mod:`schemas.results.profiles` describes the columns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.results.profiles import Breakdown, DeviceBreakdown
from transformer_core.trace.breakdown.devices import Choice
from transformer_core.trace.breakdown.summary import (
    breakdown_of_files,
    read_roofline,
    with_ceilings,
)
from transformer_core.trace.events.clocks import Window
from transformer_core.trace.events.event_table import TEXTS, Events
from transformer_core.trace.terminal import page

if TYPE_CHECKING:
    import pandas as pd

_EVERY = 1_000_000


@dataclass(frozen=True)
class Tables:
    """The traces of all ranks of one training as tables, made on demand; a table is empty if the traces
    hold nothing of its kind."""

    breakdown: Breakdown  # all numbers, as ``trace --json`` prints them
    _events: Events

    @cached_property
    def events(self) -> "pd.DataFrame":
        """All events: device events, steps, phases, modules, waits, memory; for the columns, see
        :mod:`transformer_core.trace.events.event_table`."""
        import pyarrow as pa

        from transformer_core.trace.events.arrow import table_of

        # Plain texts, because pandas groups categories by values that do not occur, too.
        found = table_of(self._events)
        kinds = [
            pa.field(column.name, pa.string() if column.name in TEXTS else column.type)
            for column in found.schema
        ]
        return found.cast(pa.schema(kinds)).to_pandas()

    @cached_property
    def devices(self) -> "pd.DataFrame":
        return self._of_devices(lambda device: [device.profiled])

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """A row per device and step: the partition of the step."""
        return self._of_devices(
            lambda device: [
                {"step": step.step, "start_ns": step.start_ns} | dict(step.partition)
                for step in device.steps
            ]
        )

    @cached_property
    def kernels(self) -> "pd.DataFrame":
        found = self._of_devices(lambda device: device.kernel_times)
        if found.empty:
            return found
        return found.sort_values("time_ns", ascending=False, ignore_index=True)

    @cached_property
    def graphs(self) -> "pd.DataFrame":
        """A row per device, CUDA graph and node; per graph if graphs were recorded as a whole."""
        return self._of_devices(
            lambda device: [
                {"graph": use.graph, "launches": use.launches}
                | (dict(node) if node else {"time_ns": use.time_ns})
                for use in device.graphs
                for node in (use.nodes or (None,))
            ]
        )

    @cached_property
    def memory(self) -> "pd.DataFrame":
        """Bytes allocated on each device, at every change."""
        found = self.events[self.events["kind"] == "memory"]
        return found[["rank", "device", "t0_ns", "bytes"]].reset_index(drop=True)

    @cached_property
    def phases(self) -> "pd.DataFrame":
        return self._of_devices(lambda device: device.phases)

    @cached_property
    def collectives(self) -> "pd.DataFrame":
        return self._of_devices(lambda device: device.collectives)

    @cached_property
    def layers(self) -> "pd.DataFrame":
        """The tree of modules, summed over devices."""
        return self._of_all("layers")

    @cached_property
    def shapes(self) -> "pd.DataFrame":
        """Operators by the shapes of their inputs, summed over devices, longest first."""
        return self._of_all("shapes")

    @cached_property
    def sources(self) -> "pd.DataFrame":
        """Kernels by the function of the program that launched them, summed likewise."""
        return self._of_all("sources")

    def __str__(self) -> str:
        return page(self.breakdown, 10)

    def _of_devices(self, rows: Callable[[DeviceBreakdown], Iterable[Any]]) -> "pd.DataFrame":
        return _frame(
            {"rank": device.rank, "device": device.device} | dict(row)
            for device in self.breakdown.devices
            for row in rows(device)
        )

    def _of_all(self, name: str) -> "pd.DataFrame":
        return _frame(map(dict, getattr(self.breakdown.summary, name, ())))


def _frame(rows: Iterable[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))


def read_files(
    paths: str | Path | Sequence[str | Path],
    name: str = "trace",
    begin_ms: float | None = None,
    end_ms: float | None = None,
    roofline: str | Path | None = None,
) -> Tables:
    """The traces of all ranks of one training: files, or folders that hold them.

    ``begin_ms`` and ``end_ms`` select a window, after the first event. ``roofline`` is a
    results/machine/roofline.json, which adds each kernel's share of the ceilings. Raises ConfigError
    for files that cannot be used.
    """
    choice = Choice(_EVERY, "", _EVERY, Window(begin_ms, end_ms))
    given = [paths] if isinstance(paths, str | Path) else paths
    breakdown, reading = breakdown_of_files([Path(path) for path in given], name, choice)
    if roofline:
        breakdown = with_ceilings(breakdown, read_roofline(Path(roofline)))
    return Tables(breakdown, reading.events)
