"""Your own training script: searched for speed-ups like any other program."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import PathText, Schema

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
