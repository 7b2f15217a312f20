"""Python's garbage collector nearly off: a full collection in a step stalls it.

What was made before the first step is frozen. Python still collects once a hundred thousand more
objects were made than freed, so memory stays bounded.
"""

import gc
from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from torch import nn

    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source

OBJECTS = 100_000


class NoGarbageCollection(Technique):
    name = "gc_off"
    words = "nearly no garbage collection between steps"
    group = "garbage collection"
    rounding = "exact"

    def __init__(self) -> None:
        self._done = False

    def module(self, module: "nn.Module") -> None:
        if not self._done:
            self._done = True
            gc.collect()
            gc.freeze()
            gc.set_threshold(OBJECTS)

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self._done else "the training calls no torch.nn.Module"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        change = ["gc.collect()", "gc.freeze()", f"gc.set_threshold({OBJECTS:_})"]
        return bool(source.before_loop(["import gc", "", *change]))

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [
            f"Before the loop, call gc.collect(), gc.freeze() and gc.set_threshold({OBJECTS:_})."
        ]


ALL = [NoGarbageCollection()]
