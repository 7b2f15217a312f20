"""The current speed of a device: a matrix product and a copy of memory, some 50 ms each.

A probe does not depend on what is trained: where it changes, the machine has changed.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from schemas.results import Probe

if TYPE_CHECKING:
    import torch

SECONDS = 0.05
"""Seconds for which each of the two tasks is repeated."""

_CPU_SIZE, _CPU_BYTES = 1024, 64 << 20
_CUDA_SIZE, _CUDA_BYTES = 4096, 256 << 20


def probe_cpu() -> Probe:
    """The speed of the CPU, with as many threads as numpy's matrix product takes.

    In numpy, so that the supervisor can ask: buffers in a process that trains would count as its
    memory.
    """
    left = np.full((_CPU_SIZE, _CPU_SIZE), 0.5, np.float32)
    product = np.empty_like(left)
    source = np.ones(_CPU_BYTES, np.uint8)
    copy = np.empty_like(source)
    return Probe(
        device="cpu",
        matmul_flops_per_second=2
        * _CPU_SIZE**3
        / _fastest(lambda: np.matmul(left, left, out=product)),
        copy_bytes_per_second=2 * _CPU_BYTES / _fastest(lambda: np.copyto(copy, source)),
    )


def probe_cuda(device: "torch.device") -> Probe:
    """The speed of a GPU. Its buffers stay in torch's cache until that is emptied."""
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
    """Shortest time of a call in seconds, of as many as fit into :data:`SECONDS`, after a first.

    The shortest: the least disturbed by what else runs, so that it shows the clock.
    """
    task()
    times: list[float] = []
    end = now() + SECONDS
    while not times or now() < end:
        began = now()
        task()
        times.append(now() - began)
    return min(times)
