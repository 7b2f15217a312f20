"""Bytes per parameter by the formulas of the original study.

Weights 4, or 6 with a 16-bit copy; gradients 4; optimizer state 8 (AdamW), 4 (SGD with momentum), 2
(8-bit AdamW); DDP's buckets the same as the gradients. This gives 16 for AdamW in 32 bits, 18 in
mixed precision (Hugging Face, "Anatomy of a model's memory"), and 16 with bfloat16 weights: 2 for
weights, 2 for gradients, 4 for masters, 8 for moments.
"""

from dataclasses import dataclass

from schemas.config.parallel import Ddp
from schemas.config.run_spec import RunSpec


@dataclass(frozen=True)
class Formula:
    """Bytes per parameter of the whole model, as held by rank 0."""

    weights: float  # weights, including the 16-bit copies that layers compute with
    gradients: float
    optimizer: float
    buckets: float | None  # additional memory for DDP's buckets; null if there is no formula

    @property
    def model_state(self) -> float:
        """Weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer


def formula(spec: RunSpec) -> Formula:
    """The memory that a variant needs by the formulas, which assume equal FSDP shards."""
    shards = spec.world_size if spec.parallel.sharded else 1
    state = spec.training.optimizer.state
    kept = spec.training.precision.numbers
    parallel, hook = spec.parallel, spec.parallel.message_hook
    apart = isinstance(parallel, Ddp) and parallel.overlap and not parallel.bucket_view
    buckets = kept.gradients if apart else 0.0
    return Formula(
        # Copies are made of gathered layers, regardless of sharding.
        weights=kept.weights / shards + kept.copies,
        gradients=kept.gradients / shards,
        optimizer=(kept.masters + state.bytes) / (spec.world_size if state.divided else shards),
        buckets=None if hook is not None and hook.keeps_errors else buckets,
    )
