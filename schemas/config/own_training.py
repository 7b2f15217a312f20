"""A training of the user's own: what makes it faster is looked for as for any other."""

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
"""What can be changed in a training without knowing its model."""

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
    """A training step of the user's own, which a function gives as module, batches and loss."""

    kind: Literal["import"]
    factory: str = Field(pattern=FACTORY_PATTERN, max_length=500, examples=["my_training:build"])
    """package.module:function that takes rank, world_size, seed and the options by name, and gives
    a dictionary of module, batches, loss and optimizer (docs/own-training.md)."""
    options: dict[Annotated[str, Field(pattern=NAME_PATTERN)], bool | Whole | Decimal | str] = (
        Field(default_factory=dict)
    )
    """What else the function wants to know."""
    head: str | None = Field(
        default=None, pattern=MODULE_PATTERN, max_length=500, examples=["head"]
    )
    """Name of the linear layer within the module that gives the logits, for chunked_loss."""
    layers: str | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*$", max_length=500, examples=["Block"]
    )
    """Class of the layers that FSDP gathers one by one. Null: what is in a torch.nn.ModuleList."""
    techniques: tuple[Technique, ...] = Field(default=_USUAL, max_length=64)
    """What is tried, each by itself and then the best together."""
    steps: Annotated[int, Field(ge=3, le=100_000), Unit("steps")] = 12
    """Optimizer steps of the short trainings that certificates compare."""
    applied: tuple[Technique, ...] = Field(default=(), max_length=64)
    """What is changed in the user's step before anything is tried: the baseline has it too."""
