"""The order of a profile's job to its workers."""

from typing import Literal

from schemas.config.profiling import Profiling
from transformer_core.run.launcher import uses_gpus
from transformer_core.run.order import TrainingOrder

_ALWAYS_TIMED = 11
"""First steps, in which DDP's reducer times itself whatever the sample rate, and on CUDA waits for
its timers (torch, ``Reducer::should_collect_runtime_stats``)."""


class CaptureOrder(TrainingOrder):
    """Order to train a few steps and record the last of them."""

    work = "transformer_core.observe.profiler"

    profiling: Profiling
    profiler: Literal["nsys", "torch"]
    """The one that records."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, profile"

    @property
    def warmup_steps(self) -> int:
        """Steps before the profiled ones: enough for what a technique does differently at first."""
        parallel = self.spec.parallel
        least = parallel.message_hook.steps_before + 1 if parallel.message_hook else 0
        if parallel.buckets and uses_gpus(self.spec):
            least = max(least, _ALWAYS_TIMED)
        return max(self.profiling.warmup_steps, least)


def rank_file(rank: int) -> str:
    """The file that a worker writes last, after it succeeded."""
    return f"rank-{rank}.json"
