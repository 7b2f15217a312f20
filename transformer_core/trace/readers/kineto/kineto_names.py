"""The categories and names of events in Kineto traces, by what they stand for."""

import re

DEVICE = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
"""Kinds of device events by category in lower case; the names without gpu_ are the old ones."""

LAUNCHES = (
    *("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"),
    *("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"),
)

UNREAD = ("mtia_ccp_events", "mtia_workloadd", "hpu_op")
"""What accelerators did whose events are no kernels and copies like those of GPUs."""

OPERATORS = ("cpu_op", "operator")

MEMORY = "[memory]"
"""The name of events of the allocator."""

MEMORY_CATEGORIES = ("cpu_instant_event",)

COLLECTIVE = re.compile(r"(nccl|gloo|ucc|mpi|rccl):.*")

_COPY = re.compile(r"(?:Memcpy|Copy)\s*([HDPA])\w*?to([HDPA])", re.IGNORECASE)
"""``Memcpy HtoD (Pinned -> Device)``; ``CopyHostToDevice`` under ROCm."""


def copy_kind(name: str) -> str | None:
    """Whence and whither a copy goes by its name, ``h2d``; null for another name."""
    found = _COPY.match(name)
    return f"{found[1]}2{found[2]}".lower() if found else None
