"""What torch's allocators have handed out: on a CPU from the profiler's allocation events."""

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "memory: "


class CpuAllocations:
    """A context that counts bytes from 0, at moments that are marked.

    The allocator keeps no count of its own: it tells the profiler of every piece that it hands out
    or gets back, also of those inside a kernel.
    """

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._counts: list[tuple[float, int]] = []
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
        pieces: dict[int, int] = {}
        total = 0
        for event in sorted(events, key=lambda event: event.get("ts", 0)):
            name, arguments = str(event.get("name", "")), event.get("args", {})
            if name.startswith(_MARK):
                self._marks.setdefault(name.removeprefix(_MARK), event["ts"])
            elif name == "[memory]" and arguments["Device Type"] == 0:
                # Not the event's own total, which may hold pieces of an earlier profile.
                if arguments["Bytes"] > 0:
                    pieces[arguments["Addr"]] = arguments["Bytes"]
                    total += arguments["Bytes"]
                else:
                    total -= pieces.pop(arguments["Addr"], 0)
                self._counts.append((event["ts"], total))

    def mark(self, moment: str) -> None:
        """Something happens now; of equal marks the first counts."""
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


class CudaAllocations:
    """The same of a CUDA device, whose allocator counts by itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peaks: dict[str, int] = {}

    def __enter__(self) -> "CudaAllocations":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def mark(self, moment: str) -> None:
        """Something happens now."""
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
