"""The memory of a process at milestones of a training."""

import ctypes
import gc
import json
import os
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from schemas.results import ForeignProcess, Milestone
from schemas.results.memory import MilestoneName
from transformer_core.machine.peak_memory import peak_rss_bytes
from transformer_core.parallel import nvml

UNREAD: dict[str, int | None] = dict.fromkeys(
    ("tensor_bytes", "reserved_bytes", "device_bytes", "process_bytes")
)


class Milestones:
    """Reads host and device memory on request, for each name only the first time.

    Create it before anything uses the device: memory in use at that time belongs to others.
    """

    def __init__(self) -> None:
        self.before = nvml.memory_by_uuid()
        self.rss_at_start = psutil.Process().memory_info().rss
        self.found: dict[torch.device, dict[str, Milestone]] = {}

    def begin(self, devices: list[torch.device]) -> None:
        """Observes these devices, which must not have worked yet."""
        for device in devices:
            reserved = 0 if device.type == "cuda" else None
            others = self.before.get(_uuid(device) or "")
            known = {"tensor_bytes": 0, "reserved_bytes": reserved, "device_bytes": others}
            start = Milestone(name="start", rss_bytes=self.rss_at_start, **UNREAD | known)
            self.found[device] = {"start": start}

    def take(self, name: MilestoneName) -> None:
        for device, seen in self.found.items():
            if name not in seen:
                seen[name] = self._read(name, device)

    def peak(self) -> None:
        """Records the largest numbers so far; for NVML, the largest of its readings."""
        for device, seen in self.found.items():
            known: dict[str, int | None] = {
                name: max(
                    (v for m in seen.values() if (v := getattr(m, name)) is not None), default=None
                )
                for name in ("device_bytes", "process_bytes")
            }
            if device.type == "cuda":
                known["tensor_bytes"] = torch.cuda.max_memory_allocated(device)
                known["reserved_bytes"] = torch.cuda.max_memory_reserved(device)
            seen["peak"] = Milestone(name="peak", rss_bytes=peak_rss_bytes(), **UNREAD | known)

    def foreign(self) -> list[ForeignProcess]:
        found = []
        for device in self.found:
            identity = _uuid(device)
            processes = {} if identity is None else nvml.process_memory(identity)
            # In a container NVML reports the host's ids, and none of them is ours.
            if len(processes) == 1 and os.getpid() not in processes:
                continue
            for pid, used in processes.items():
                name = None
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    # torchrun is the parent of all ranks of a host.
                    if pid == os.getpid() or process.ppid() == os.getppid():
                        continue
                    name = process.name()
                found.append(ForeignProcess(device=str(device), pid=pid, name=name, bytes=used))
        return found

    def _read(self, name: MilestoneName, device: torch.device) -> Milestone:
        gc.collect()
        rss = psutil.Process().memory_info().rss
        known: dict[str, int | None] = {}
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            identity = _uuid(device) or ""
            known = {
                "tensor_bytes": torch.cuda.memory_allocated(device),
                "reserved_bytes": torch.cuda.memory_reserved(device),
                "device_bytes": nvml.memory_by_uuid().get(identity),
                "process_bytes": nvml.process_memory(identity).get(os.getpid()),
            }
        return Milestone(name=name, rss_bytes=rss, **UNREAD | known)


def first_kernel(device: torch.device) -> None:
    """Runs one kernel, so that the device allocates what a process needs besides tensors."""
    ones = torch.ones(64, 64, device=device)
    float((ones @ ones).sum())


def _uuid(device: torch.device) -> str | None:
    return nvml.cuda_uuid(device.index or 0) if device.type == "cuda" else None


_MARK = "memory: "


class CpuAllocations:
    """A context that counts allocated bytes, from 0, at marked moments.

    torch's allocator reports all allocations to the profiler, even inside a kernel. By default it
    overlooks memory freed by threads that the profiler does not know, such as gloo's; with the
    setting ``caffe2_report_cpu_memory_usage`` it counts that, too.
    """

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        (library,) = Path(torch.__file__).parent.glob("lib/libc10.*")
        name = "FLAGS_caffe2_report_cpu_memory_usage"
        self._complete = ctypes.c_bool.in_dll(ctypes.CDLL(str(library)), name)
        self._counts: list[tuple[float, int]] = []
        self._marks: dict[str, float] = {}

    def __enter__(self) -> "CpuAllocations":
        self._complete.value = True
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)
        self._complete.value = False
        with tempfile.TemporaryDirectory() as folder:
            # Only the trace gives public access to the totals of events.
            trace = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(trace))
            events = json.loads(trace.read_bytes())["traceEvents"]
        before = None
        for event in sorted(events, key=lambda event: event.get("ts", 0)):
            name, arguments = str(event.get("name", "")), event.get("args", {})
            if name.startswith(_MARK):
                self._marks.setdefault(name.removeprefix(_MARK), event["ts"])
            elif name == "[memory]" and arguments["Device Type"] == 0:
                if before is None:
                    before = arguments["Total Allocated"] - arguments["Bytes"]
                self._counts.append((event["ts"], arguments["Total Allocated"] - before))

    def mark(self, moment: str) -> None:
        """Marks a moment; a repeated mark does not count."""
        torch.empty(1)  # the allocator reports what other threads freed with its next allocation
        with record_function(_MARK + moment):
            pass

    def at(self, moment: str) -> int | None:
        """Bytes allocated when ``moment`` was marked; None if it was not."""
        if moment not in self._marks:
            return None
        before = [count for time, count in self._counts if time <= self._marks[moment]]
        return before[-1] if before else 0

    def peak(self, start: str, end: str) -> int:
        """Largest number of allocated bytes between two marks."""
        first, last = self._marks[start], self._marks[end]
        inside = (count for time, count in self._counts if first <= time <= last)
        return max([self.at(start) or 0, *inside])


class CudaAllocations(nullcontext[None]):
    """The same for a CUDA device, whose allocator counts on its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._peaks: dict[str, int] = {}

    def mark(self, moment: str) -> None:
        torch.cuda.synchronize(self._device)
        self._peaks.setdefault(moment, torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)

    def at(self, moment: str) -> int | None:
        """None: milestones have already read the allocator's count."""
        return None

    def peak(self, start: str, end: str) -> int:
        """Largest number of allocated bytes between two marks; ``end`` must directly follow
        ``start``."""
        return self._peaks[end]
