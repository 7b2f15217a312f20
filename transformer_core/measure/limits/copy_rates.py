"""How fast a device copies: in its memory, and from and to the host."""

from collections.abc import Callable
from typing import Literal

import torch

from schemas.results import Bandwidth, Transfer
from transformer_core.machine import hardware
from transformer_core.measure.limits.stopwatch import Stopwatch

_MEBI = 2**20


def bandwidths(watch: Stopwatch, array_bytes: int, threads: int | None) -> list[Bandwidth]:
    """Copy and triad (McCalpin's STREAM) over arrays of 32-bit numbers."""
    count = array_bytes // 4
    b = torch.rand(count, device=watch.device)
    # Random numbers take longer than all copies of them; what is written first may be anything.
    a, c = torch.empty_like(b), b.clone()

    def copy() -> None:
        a.copy_(b)

    def triad() -> None:
        torch.add(b, c, alpha=3.0, out=a)

    operations: list[tuple[Literal["copy", "triad"], Callable[[], None], int]]
    operations = [("copy", copy, 2), ("triad", triad, 3)]
    return [
        Bandwidth(
            operation=operation,
            threads=threads,
            bytes_per_second=arrays * 4 * count / watch.best(call),
            array_bytes=4 * count,
        )
        for operation, call, arrays in operations
    ]


def array_size(device: torch.device) -> int:
    """Bytes of an array that no cache holds, in a small part of the memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(2**30, free // 8)
    largest = max(4 * hardware.last_level_cache_bytes(), 64 * _MEBI)
    return min(largest, hardware.usable_memory_bytes() // 32)


def transfers(watch: Stopwatch, size: int) -> list[Transfer]:
    """Copies of ``size`` bytes between a GPU and pinned and pageable memory of the host."""
    on_device = torch.rand(size // 4, device=watch.device)
    found = []
    kinds: list[tuple[Literal["pinned", "pageable"], bool]]
    kinds = [("pinned", True), ("pageable", False)]
    for memory, pinned in kinds:
        on_host = torch.rand(size // 4).pin_memory() if pinned else torch.rand(size // 4)

        def to_device(host: torch.Tensor = on_host) -> None:
            on_device.copy_(host, non_blocking=True)

        def to_host(host: torch.Tensor = on_host) -> None:
            host.copy_(on_device, non_blocking=True)

        directions: list[tuple[Literal["host_to_device", "device_to_host"], Callable[[], None]]]
        directions = [("host_to_device", to_device), ("device_to_host", to_host)]
        found += [
            Transfer(direction=direction, memory=memory, bytes_per_second=size / watch.best(call))
            for direction, call in directions
        ]
    return found
