"""Profiles of a few steps, and the machine limits that they are compared with."""

from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field, ValidationInfo, field_validator

from schemas.base import Schema, refuse_less


class Profiling(Schema):
    """The profile of each variant: a separate short run, never the timed one."""

    profiler: Literal["auto", "nsys", "torch"] = "auto"
    """Nsight Systems or torch.profiler; auto uses Nsight Systems if it is installed and a CUDA
    device is available, otherwise torch.profiler."""
    warmup_steps: Annotated[int, Field(ge=1, le=100_000), Unit("steps")] = 3
    """Steps before the profiled ones."""
    steps: Annotated[int, Field(ge=1, le=1_000), Unit("steps")] = 3
    """Profiled steps."""


class Limits(Schema):
    """How thoroughly the limits of the machine are measured."""

    seconds: Annotated[float, Unit("seconds")] = Field(default=0.05, gt=0.0, le=3_600.0)
    """Seconds for the repetitions of each measurement; the best one counts."""
    largest_matrix: Annotated[int, Unit("elements")] = Field(default=8192, ge=256, le=131_072)
    """Largest side of the matrices whose products are timed; smaller if one product would take
    much longer than ``seconds``."""
    smallest_message: Annotated[int, Unit("bytes")] = Field(default=4096, ge=512, le=2**40)
    """Smallest message of the collective operations, in bytes."""
    largest_message: Annotated[int, Unit("bytes")] = Field(default=16 * 2**20, ge=512, le=2**40)
    """Largest message of the collective operations, in bytes; sizes grow by a factor of 4."""

    @field_validator("largest_message")
    @classmethod
    def _largest_is_not_less(cls, largest: int, info: ValidationInfo) -> int:
        refuse_less(largest, info, "smallest_message")
        return largest
