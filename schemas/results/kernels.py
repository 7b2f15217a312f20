"""What computed the steps of a training, as its process found it."""

from schemas.base import Schema
from schemas.results.common import Few


class StepKernels(Schema):
    """What worked in the first optimizer step, seen from the main rank.

    Equal for two trainings that compute alike, whatever the numbers are.
    """

    operators: list[str]
    """Every operator of torch that was called from this process's training thread, forward and
    backward, communication and update, each with the number format of its first operand; sorted.
    Their names tell fused kernels from written-out ones."""
    attention: list[str]
    """Those of the operators that are attention kernels; empty where attention is written out."""
    update: list[str]
    """Those that work on many tensors at once, as optimizers and clipping do: a whole update
    (fused) or one operation of it (foreach)."""
    compiled: bool
    """Whether a part of the model was compiled."""
    deterministic: bool
    """Whether torch was told to add in a fixed order."""
    allocator: str
    """C memory allocator of the process, and torch's on CUDA, with their settings."""
    threads: Few
    """CPU threads of the process."""
