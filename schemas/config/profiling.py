"""Profiles of a few steps, and the limits of the machine that they are held against."""

from typing import Literal

from pydantic import Field

from schemas.base import Count, Schema


class Profiling(Schema):
    """The profile of each variant: a short run of its own, never the timed one."""

    profiler: Literal["auto", "nsys", "torch"] = "auto"
    """Nsight Systems or torch.profiler; auto takes Nsight Systems where it is installed and there
    is a CUDA device, else torch.profiler."""
    warmup_steps: Count = 3
    """Steps before the profiled ones."""
    steps: Count = 3
    """Profiled steps."""


class Limits(Schema):
    """How thoroughly the limits of the machine are measured."""

    seconds: float = Field(default=0.05, gt=0.0)
    """Time for the repetitions of each measurement, of which the best counts."""
    largest_matrix: int = Field(default=8192, ge=256)
    """Largest side of the matrices whose products are timed; smaller where one product would take
    much longer than ``seconds``."""
    smallest_message: int = Field(default=4096, ge=512)
    """Smallest message of the collective operations, in bytes."""
    largest_message: int = Field(default=16 * 2**20, ge=512)
    """Largest message of the collective operations, in bytes; sizes grow by a factor of 4."""
