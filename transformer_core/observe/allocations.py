"""Memory that torch's allocators have handed out: on a CPU from the profiler's allocation
events."""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "memory: "
_SAME_US = 1000.0
"""Microseconds by which two clocks may differ on the end of a piece."""


class CpuAllocations:
    """A context that counts bytes from 0, at moments that are marked.

    The allocator keeps no count of its own: it tells the profiler of every piece that it hands out
    or gets back, also of those inside a kernel. It does not tell of what threads give back that the
    profiler does not know, such as those of gloo, which often let go of a message last. ``deaths``
    says of those: addresses and times by ``time.perf_counter_ns``, complete when the context ends.
    """

    def __init__(self, deaths: Sequence[tuple[int, int]] = ()) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._deaths = deaths
        self._counts: list[tuple[float, int]] = []
        self._clock: dict[str, int] = {}
        self._marks: dict[str, float] = {}

    def __enter__(self) -> "CpuAllocations":
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)
        with tempfile.TemporaryDirectory() as folder:
            # The trace is the one public form in which the events have totals.
            trace = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(trace))
            events = json.loads(trace.read_bytes())["traceEvents"]
        told = []
        for event in sorted(events, key=lambda event: event.get("ts", 0)):
            name, arguments = str(event.get("name", "")), event.get("args", {})
            if name.startswith(_MARK):
                self._marks.setdefault(name.removeprefix(_MARK), event["ts"])
            elif name == "[memory]" and arguments["Device Type"] == 0:
                told.append((event["ts"], arguments["Addr"], arguments["Bytes"]))
        total = 0
        for time_us, change in sorted(_changes(told, self._dated_deaths())):
            total += change
            self._counts.append((time_us, total))

    def _dated_deaths(self) -> list[tuple[int, float]]:
        """Addresses and times as the profiler counts time: microseconds, from another moment."""
        shifts = [time - self._clock[name] / 1e3 for name, time in self._marks.items()]
        shift = median(shifts) if shifts else 0.0
        return [(address, time / 1e3 + shift) for address, time in self._deaths]

    def mark(self, moment: str) -> None:
        """Marks a moment; of equal marks the first counts."""
        self._clock.setdefault(moment, time.perf_counter_ns())
        with record_function(_MARK + moment):
            pass

    def at(self, moment: str) -> int | None:
        """Bytes handed out when ``moment`` was marked; None if it was not."""
        if moment not in self._marks:
            return None
        before = [count for time, count in self._counts if time <= self._marks[moment]]
        return before[-1] if before else 0

    def peak(self, start: str, end: str) -> int:
        """Largest number of bytes handed out between two marks."""
        first, last = self._marks[start], self._marks[end]
        inside = (count for time, count in self._counts if first <= time <= last)
        return max([self.at(start) or 0, *inside])


def _changes(
    told: Iterable[tuple[float, int, int]], deaths: Iterable[tuple[int, float]]
) -> list[tuple[float, int]]:
    """Times and changes of the number of bytes, from what the allocator told: times, addresses, and
    bytes, which are negative for a piece that came back.

    A piece whose end nobody told ended with the storage there, or at the latest when its address
    was handed out again. Pieces that were there before do not count.
    """
    ends = defaultdict(list)
    for address, at in deaths:
        ends[address].append(at)
    changes: list[tuple[float, int]] = []
    pieces: dict[int, tuple[float, int]] = {}

    def finish(address: int, latest: float | None) -> None:
        began, size = pieces.pop(address)
        known = [at for at in ends[address] if at >= began and (latest is None or at <= latest)]
        if known or latest is not None:
            changes.append((min(known) if known else latest or began, -size))

    for at, address, size in told:
        if size > 0:
            if address in pieces:
                finish(address, at)
            pieces[address] = at, size
            changes.append((at, size))
        elif address in pieces:
            changes.append((at, -pieces.pop(address)[1]))
            # The same end, told by the storage: not that of the next piece at the address.
            same = [end for end in ends[address] if abs(end - at) <= _SAME_US]
            if same:
                ends[address].remove(min(same, key=lambda end: abs(end - at)))
    for address in list(pieces):
        finish(address, None)
    return changes


class CudaAllocations:
    """The same for a CUDA device, whose allocator counts by itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peaks: dict[str, int] = {}

    def __enter__(self) -> "CudaAllocations":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def mark(self, moment: str) -> None:
        """Marks a moment."""
        torch.cuda.synchronize(self._device)
        self._peaks.setdefault(moment, torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)

    def at(self, moment: str) -> int | None:
        """None: milestones have read the allocator's count already."""
        return None

    def peak(self, start: str, end: str) -> int:
        """Largest number of bytes handed out between two marks, of which ``end`` is the next after
        ``start``."""
        return self._peaks[end]
