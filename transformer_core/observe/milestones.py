"""The memory of a process at the moments of its life."""

import gc
import os
from collections.abc import Iterator

import psutil
import torch

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
