"""Kernels that computed a training's steps, as recorded by its process."""

from schemas.base import Schema
from schemas.results.common import Few


class StepKernels(Schema):
    """Kernels used in the first optimizer step, as seen from the main rank.

    Equal for two trainings that compute the same way, whatever their numbers.
    """

    operators: list[str]
    """Every torch operator called from this process's training thread, in forward, backward,
    communication and update, each with the number format of its first operand; sorted. Their
    names distinguish fused kernels from explicit ones."""
    attention: list[str]
    """The operators that are attention kernels; empty for explicit attention."""
    update: list[str]
    """The operators that work on many tensors at once, for optimizers and clipping: a whole
    update (fused) or one of its operations (foreach)."""
    compiled: bool
    """Whether any part of the model was compiled."""
    deterministic: bool
    """Whether torch was set to use deterministic algorithms."""
    allocator: str
    """C memory allocator of the process, and torch's CUDA allocator, with their settings."""
    threads: Few
    """CPU threads of the process."""
