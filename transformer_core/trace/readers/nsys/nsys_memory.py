"""The memory of devices in reports of Nsight Systems (``--cuda-memory-usage=true``)."""

from collections.abc import Iterator

import numpy as np

from transformer_core.trace.readers.columns import NULL, Integers

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
COLUMNS = ("start", "deviceId", "bytes", "memKind", "memoryOperationType", "globalPid")

_ON_DEVICE = (2, 3, 5)
"""Device, array and static memory of a device, not of the host (ENUM_CUDA_MEM_KIND)."""
_ALLOCATION, _RELEASE = 0, 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER."""
_NO_SIZE = 2**50


def allocated(rows: dict[str, Integers]) -> Iterator[tuple[int, Integers, Integers]]:
    """Device, times and allocated bytes after each of them, of the events of one process.

    These are calls of the driver, of which a framework's own allocator makes few. What was there
    before the recording counts as far as it is released within it.
    """
    good = np.isin(rows["memKind"], _ON_DEVICE) & (rows["start"] != NULL)
    good &= np.isin(rows["memoryOperationType"], (_ALLOCATION, _RELEASE))
    good &= (rows["bytes"] >= 0) & (rows["bytes"] < _NO_SIZE) & (rows["deviceId"] >= 0)
    order = np.argsort(rows["start"], kind="stable")
    order = order[good[order]]
    for device in np.unique(rows["deviceId"][order]).tolist():
        mine = order[rows["deviceId"][order] == device]
        grown = rows["memoryOperationType"][mine] == _ALLOCATION
        total = np.cumsum(np.where(grown, rows["bytes"][mine], -rows["bytes"][mine]))
        yield device, rows["start"][mine], total - min(0, int(total.min()))
