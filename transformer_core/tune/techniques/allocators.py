"""Memory allocators, selected by environment variables."""

import ctypes.util
from typing import Any

from transformer_core.tune.techniques.technique import Technique


class Allocator(Technique):
    group = "allocator"
    rounding = "exact"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["device"] == "cpu" else "the script's memory is on the GPU"


class KeptMemory(Allocator):
    name = "allocator_kept"
    words = "the C library keeps freed memory"

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


class HugePages(KeptMemory):
    name = "allocator_huge_pages"
    words = "the C library keeps freed memory, in huge pages"

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return super().environment(facts) | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class Jemalloc(Allocator):
    name = "jemalloc"
    words = "the jemalloc allocator with huge pages"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if ctypes.util.find_library("jemalloc") is None:
            return "jemalloc is not installed: apt-get install libjemalloc2"
        return super().obstacle(facts)

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return {
            "LD_PRELOAD": ctypes.util.find_library("jemalloc") or "",
            "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always",
        }


class ExpandableSegments(Technique):
    name = "expandable_segments"
    words = "growing segments of GPU memory"
    group = "allocator"
    rounding = "exact"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["device"] == "cuda" else "the script uses no GPU"

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
