"""The current state of the machine: its speed, and the CPU time of other processes."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psutil

from schemas.results import Probe

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CpuTime:
    """CPU seconds so far: of the whole host, and of this process with those that belong to it."""

    host: float
    own: float

    def foreign_until(self, later: "CpuTime") -> float:
        """CPU seconds that other processes used between this reading and a later one.

        Both counts advance in ticks of the kernel, so a slightly negative difference counts as 0.
        """
        return max(0.0, (later.host - self.host) - (later.own - self.own))


def cpu_time(others: Iterable[int] = ()) -> CpuTime | None:
    """The current counts; None if the kernel does not report them.

    The host's count includes time that a hypervisor took away (steal). This process's own includes
    its descendants, also those that have ended, and the processes ``others`` with theirs: a process
    forked by a server is not a descendant.
    """
    try:
        times = psutil.cpu_times()
        processes = set(_with_descendants(os.getpid()))
    except (OSError, psutil.Error):
        return None
    for pid in others:
        with suppress(psutil.Error):  # it has just ended
            processes.update(_with_descendants(pid))
    busy = sum(
        getattr(times, field, 0.0)
        for field in ("user", "nice", "system", "irq", "softirq", "steal")
    )
    return CpuTime(host=busy, own=sum(map(_seconds, processes)))


def _with_descendants(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0  # it has just ended
    return times.user + times.system + times.children_user + times.children_system


SECONDS = 0.05  # seconds for which each of the two tasks is repeated

_CPU_SIZE, _CPU_BYTES = 1024, 64 << 20
_CUDA_SIZE, _CUDA_BYTES = 4096, 256 << 20


def probe_cpu() -> Probe:
    """The speed of the CPU, with as many threads as numpy's matrix product uses.

    Uses numpy so that the supervisor can run it: in a process that trains, the buffers would count
    as its memory.
    """
    left = np.full((_CPU_SIZE, _CPU_SIZE), 0.5, np.float32)
    product = np.empty_like(left)
    source = np.ones(_CPU_BYTES, np.uint8)
    copy = np.empty_like(source)
    seconds = _fastest(lambda: np.matmul(left, left, out=product))
    return Probe(
        device="cpu",
        matmul_flops_per_second=2 * _CPU_SIZE**3 / seconds,
        copy_bytes_per_second=2 * _CPU_BYTES / _fastest(lambda: np.copyto(copy, source)),
    )


def probe_cuda(device: "torch.device") -> Probe:
    """The speed of a GPU. The buffers stay in torch's cache until it is emptied."""
    import torch

    left = torch.full((_CUDA_SIZE, _CUDA_SIZE), 0.5, device=device)
    product = torch.empty_like(left)
    source = torch.ones(_CUDA_BYTES, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)

    def multiply() -> None:
        torch.matmul(left, left, out=product)
        torch.cuda.synchronize(device)

    def move() -> None:
        copy.copy_(source)
        torch.cuda.synchronize(device)

    return Probe(
        device=f"cuda:{device.index}",
        matmul_flops_per_second=2 * _CUDA_SIZE**3 / _fastest(multiply),
        copy_bytes_per_second=2 * _CUDA_BYTES / _fastest(move),
    )


def _fastest(task: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> float:
    """Shortest time of a call in seconds, among as many as fit into :data:`SECONDS` after a first.

    The shortest call is the one least disturbed by other processes, so it reflects the clock.
    """
    task()
    times: list[float] = []
    end = now() + SECONDS
    while not times or now() < end:
        began = now()
        task()
        times.append(now() - began)
    return min(times)
