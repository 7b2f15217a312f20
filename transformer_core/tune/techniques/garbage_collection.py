"""Python's garbage collector off between steps: a full collection in a step stalls it.

What was made before the first step is frozen, and a collection runs every hundred steps, so memory
stays bounded.
"""

import gc
from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from transformer_core.tune.source import Source

EVERY = 100


class NoGarbageCollection(Technique):
    name = "gc_off"
    words = "no garbage collection between steps"
    group = "garbage collection"
    rounding = "exact"

    def boundary(self, step: int) -> None:
        if step == 1:
            gc.collect()
            gc.freeze()
            gc.disable()
        elif step % EVERY == 0:
            gc.collect()

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        return bool(
            source.before_loop(["import gc", "", "gc.collect()", "gc.freeze()", "gc.disable()"])
        )

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Call gc.freeze() and gc.disable() before the loop, gc.collect() every 100 steps."]


ALL = [NoGarbageCollection()]
