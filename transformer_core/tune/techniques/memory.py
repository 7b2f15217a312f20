"""Memory: its allocators, selected by environment variables, and what is freed between steps."""

import ctypes.util
import gc
import os
from typing import Any

import torch
from torch import nn

from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique


def _added(**given: str) -> dict[str, str]:
    """These environment variables, each with the user's own settings. Of libraries the first one wins, of
    other settings the last one."""
    found = {}
    for name, value in given.items():
        parts = [os.environ.get(name, ""), value]
        separator = "," if name.endswith("CONF") else ":"
        found[name] = separator.join(filter(None, parts[::-1] if name == "LD_PRELOAD" else parts))
    return found


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
        return super().environment(facts) | _added(GLIBC_TUNABLES="glibc.malloc.hugetlb=1")


class Jemalloc(Allocator):
    name = "jemalloc"
    words = "the jemalloc allocator with huge pages"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if ctypes.util.find_library("jemalloc") is None:
            return "jemalloc is not installed: apt-get install libjemalloc2"
        return super().obstacle(facts)

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        return _added(
            LD_PRELOAD=ctypes.util.find_library("jemalloc") or "",
            MALLOC_CONF="dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always",
        )


class ExpandableSegments(Technique):
    name = "expandable_segments"
    words = "growing segments of GPU memory"
    group = "allocator"
    rounding = "exact"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["device"] == "cuda" else "the script uses no GPU"

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        names = ["PYTORCH_CUDA_ALLOC_CONF"]
        if "PYTORCH_ALLOC_CONF" in os.environ:  # of the user: newer versions of torch prefer it
            names.append("PYTORCH_ALLOC_CONF")
        return _added(**dict.fromkeys(names, "expandable_segments:True"))


class FreedGradients(Technique):
    """The next step writes gradients instead of adding to them: ``torch.optim.Optimizer.zero_grad``."""

    name = "freed_gradients"
    words = "gradients freed between steps, not filled with zeros"
    group = "gradients"
    advice = "Call zero_grad() without set_to_none=False."
    rounding = "exact"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        return None if facts["counts"].get("zeroed") else "the script frees its gradients already"

    def prepare(self, watch: Watch) -> None:
        def zero_grad(original: Any, made: Any, set_to_none: bool = True) -> None:
            original(made)

        for owner in (torch.optim.Optimizer, nn.Module):
            replacing(owner, "zero_grad")(zero_grad)


OBJECTS = 100_000
MOST_GARBAGE = 20
"""Objects in cycles that each backward pass may leave: among so many, tensors would hold much memory before
:data:`OBJECTS` have gathered."""


class NoGarbageCollection(Technique):
    """A full collection during a step stalls it, so objects made before the first step are frozen.
    Python still collects after every hundred thousand new objects that are not freed, so memory stays
    bounded."""

    name = "gc_off"
    words = "almost no garbage collection between steps"
    group = "garbage collection"
    advice = f"Before the loop, call gc.collect(), gc.freeze() and gc.set_threshold({OBJECTS:_})."
    rounding = "exact"
    idle = "the training calls no torch.nn.Module that is in training mode (.train())"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts.get("garbage", 0) <= MOST_GARBAGE:
            return None
        return (
            f"each backward pass leaves about {facts['garbage']:.0f} objects in reference cycles, whose memory only "
            "the garbage collection frees"
        )

    def module(self, module: nn.Module) -> None:
        if not self.applied:
            self.applied = 1
            gc.collect()
            gc.freeze()
            gc.set_threshold(OBJECTS)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        change = ["gc.collect()", "gc.freeze()", f"gc.set_threshold({OBJECTS:_})"]
        return source.before_loop(change)
