"""Your own training step: searched for speed-ups like any other program."""

from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import FACTORY_PATTERN, NAME_PATTERN, Decimal, Schema, Whole

Technique = Literal[
    "fused_optimizer",
    "allocator_kept",
    "allocator_huge_pages",
    "bf16",
    "fp16",
    "bf16_matmul",
    "tf32",
    "chunked_loss",
    "accumulation_2",
    "compile",
    "ddp",
    "ddp_fp16_messages",
    "fsdp",
]
"""Changes to a training that need no knowledge of its model."""

_USUAL: tuple[Technique, ...] = (
    "fused_optimizer",
    "allocator_kept",
    "allocator_huge_pages",
    "bf16",
    "bf16_matmul",
    "tf32",
    "chunked_loss",
    "ddp",
    "fsdp",
)

MODULE_PATTERN = r"^[A-Za-z_][\w]*(\.\w+)*$"


class ImportedTask(Schema):
    """Your own training step: a function that returns module, batches and loss."""

    kind: Literal["import"]
    factory: str = Field(pattern=FACTORY_PATTERN, max_length=500, examples=["my_training:build"])
    """package.module:function that takes rank, world_size, seed and the options by name, and
    returns a dictionary of module, batches, loss and optimizer (docs/own-training.md)."""
    options: dict[Annotated[str, Field(pattern=NAME_PATTERN)], bool | Whole | Decimal | str] = (
        Field(default_factory=dict)
    )
    """Additional arguments for the function."""
    head: str | None = Field(
        default=None, pattern=MODULE_PATTERN, max_length=500, examples=["head"]
    )
    """Name of the linear layer in the module that computes the logits, for chunked_loss."""
    layers: str | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*$", max_length=500, examples=["Block"]
    )
    """Class of the layers that FSDP gathers one by one. Null: the members of any
    torch.nn.ModuleList."""
    techniques: tuple[Technique, ...] = Field(default=_USUAL, max_length=64)
    """Techniques to try, first individually and then the best together."""
    steps: Annotated[int, Field(ge=3, le=100_000), Unit("steps")] = 12
    """Optimizer steps of the short trainings that certificates compare."""
    applied: tuple[Technique, ...] = Field(default=(), max_length=64)
    """Techniques applied to your step before anything is tried: the baseline has them too."""
