"""The memory of a process at the moments of its life."""

import gc
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import psutil
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from schemas.results import ForeignProcess, Milestone
from schemas.results.memory import MilestoneName
from transformer_core.machine.peak_memory import peak_rss_bytes
from transformer_core.parallel import nvml


class Milestones:
    """Reads host and device memory on request; each name once, the first time.

    Made before anything has touched the device: what is in use then belongs to others.
    """

    def __init__(self) -> None:
        self.before = nvml.memory_by_uuid()
        self.rss_at_start = psutil.Process().memory_info().rss
        self.found: dict[torch.device, dict[str, Milestone]] = {}

    def begin(self, devices: list[torch.device]) -> None:
        """Observes these devices, which have done no work yet."""
        for device in devices:
            start = Milestone(
                name="start",
                tensor_bytes=0,
                reserved_bytes=0 if device.type == "cuda" else None,
                rss_bytes=self.rss_at_start,
                device_bytes=self.before.get(_uuid(device) or ""),
                process_bytes=None,
            )
            self.found[device] = {"start": start}

    def take(self, name: MilestoneName) -> None:
        """Reads everything now, unless the name was already used."""
        for device, seen in self.found.items():
            if name not in seen:
                seen[name] = self._read(name, device)

    def peak(self) -> None:
        """The largest of everything so far; of NVML's numbers, the largest that was read."""
        for device, seen in self.found.items():
            cuda = device.type == "cuda"
            seen["peak"] = Milestone(
                name="peak",
                tensor_bytes=torch.cuda.max_memory_allocated(device) if cuda else None,
                reserved_bytes=torch.cuda.max_memory_reserved(device) if cuda else None,
                rss_bytes=peak_rss_bytes(),
                device_bytes=_largest(m.device_bytes for m in seen.values()),
                process_bytes=_largest(m.process_bytes for m in seen.values()),
            )

    def foreign(self) -> list[ForeignProcess]:
        """Other processes with memory on the observed devices."""
        found = []
        for device in self.found:
            identity = _uuid(device)
            processes = {} if identity is None else nvml.process_memory(identity)
            # Inside a container NVML's ids are those of the host: then none of them is ours.
            if len(processes) == 1 and os.getpid() not in processes:
                continue
            for pid, used in processes.items():
                if not _of_this_run(pid):
                    found.append(
                        ForeignProcess(device=str(device), pid=pid, name=_name(pid), bytes=used)
                    )
        return found

    def _read(self, name: MilestoneName, device: torch.device) -> Milestone:
        gc.collect()
        rss = psutil.Process().memory_info().rss
        if device.type != "cuda":
            return Milestone(
                name=name,
                tensor_bytes=None,
                reserved_bytes=None,
                rss_bytes=rss,
                device_bytes=None,
                process_bytes=None,
            )
        torch.cuda.synchronize(device)
        identity = _uuid(device) or ""
        return Milestone(
            name=name,
            tensor_bytes=torch.cuda.memory_allocated(device),
            reserved_bytes=torch.cuda.memory_reserved(device),
            rss_bytes=rss,
            device_bytes=nvml.memory_by_uuid().get(identity),
            process_bytes=nvml.process_memory(identity).get(os.getpid()),
        )


def first_kernel(device: torch.device) -> None:
    """Runs one kernel, so that the device allocates what a process takes before its first
    tensor."""
    ones = torch.ones(64, 64, device=device)
    float((ones @ ones).sum())


def _of_this_run(pid: int) -> bool:
    """Whether a process is this one or has the same parent: torchrun's for all ranks of a host."""
    if pid == os.getpid():
        return True
    try:
        return psutil.Process(pid).ppid() == os.getppid()
    except psutil.Error:
        return False


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def _uuid(device: torch.device) -> str | None:
    return nvml.cuda_uuid(device.index or 0) if device.type == "cuda" else None


def _largest(values: Iterator[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


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
