"""Your own training, a script or a function: searched for speed-ups like any other program."""

from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import BeforeValidator, Field

from schemas.base import FACTORY_PATTERN, NAME_PATTERN, Decimal, PathText, Schema, Whole

ScriptTechnique = Literal[
    "allocator_huge_pages",
    "allocator_kept",
    "bf16",
    "bf16_matmul",
    "channels_last",
    "chunked_loss",
    "compiled_blocks",
    "compiled_model",
    "cudnn_benchmark",
    "data_workers",
    "expandable_segments",
    "foreach_optimizer",
    "fused_optimizer",
    "gc_off",
    "jemalloc",
    "kept_activations",
    "physical_cores",
    "pinned_memory",
    "tf32",
]
"""Changes that need no knowledge of a script: transformer_core/tune/techniques."""

FactoryTechnique = Literal[
    ScriptTechnique, "accumulation_2", "ddp", "ddp_fp16_messages", "fp16", "fsdp"
]
"""The same, and changes of the loop around a factory's parts."""

MODULE_PATTERN = r"^[A-Za-z_][\w]*(\.\w+)*$"


class ScriptTask(Schema):
    """A training script, run unedited."""

    kind: Literal["script"]
    command: tuple[Annotated[str, Field(max_length=10_000)], ...] = Field(
        min_length=1, max_length=1_000, examples=[["train.py", "--batch-size", "8"]]
    )
    """Script and arguments, as they follow python; ``-m`` and a module works too, as does
    torchrun with its options."""
    directory: PathText | None = Field(default=None, examples=["/home/me/nanoGPT"])
    """Working directory of the script. Null: the folder in which Snakemake is started."""
    techniques: tuple[ScriptTechnique, ...] | None = Field(default=None, max_length=64)
    """Changes to try. Null: all that apply to the script on this machine."""
    verify: bool = True
    """Whether the changed script is run against the original."""


def _named(value: Any) -> Any:
    """``compile`` is the short name of ``compiled_model``."""
    return "compiled_model" if value == "compile" else value


_Named = Annotated[FactoryTechnique, BeforeValidator(_named)]


class ImportedTask(Schema):
    """The parts of your training step: a function returns module, batches, loss and optimizer."""

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
    """Name of the linear layer in the module that computes the logits, for chunked_loss. Null: the
    layer as wide as the classes of the loss, if there are at least 1,000."""
    layers: str | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*$", max_length=500, examples=["Block"]
    )
    """Class of the layers that FSDP gathers one by one. Null: the members of any
    torch.nn.ModuleList."""
    techniques: tuple[_Named, ...] | None = Field(default=None, max_length=64)
    """Techniques to try, first individually and then the best together. Null: all that apply to
    the training on this machine, except compiled_model on a CPU, accumulation_2,
    ddp_fp16_messages and fp16."""
    steps: Annotated[int, Field(ge=3, le=100_000), Unit("steps")] | None = None
    """Optimizer steps that certificates compare. Null: six, or fewer where steps are slow."""
    applied: tuple[_Named, ...] = Field(default=(), max_length=64)
    """Techniques applied to your step before anything is tried: the baseline has them too."""
    verify: bool = True
    """Whether the changed files are run against the original ones."""
