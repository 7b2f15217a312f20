"""Almost no garbage collection by Python: a full collection during a step stalls it.

Objects made before the first step are frozen. Python still collects after every hundred thousand
new objects that are not freed, so memory stays bounded.
"""

import gc
from typing import Any

from torch import nn

from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique

OBJECTS = 100_000


class NoGarbageCollection(Technique):
    name = "gc_off"
    words = "almost no garbage collection between steps"
    group = "garbage collection"
    advice = f"Before the loop, call gc.collect(), gc.freeze() and gc.set_threshold({OBJECTS:_})."
    rounding = "exact"
    idle = "the training calls no torch.nn.Module"

    def module(self, module: nn.Module) -> None:
        if not self.applied:
            self.applied = 1
            gc.collect()
            gc.freeze()
            gc.set_threshold(OBJECTS)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        change = ["gc.collect()", "gc.freeze()", f"gc.set_threshold({OBJECTS:_})"]
        return source.before_loop(["import gc", "", *change])
