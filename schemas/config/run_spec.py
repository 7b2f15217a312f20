"""Run specs: the task, and every section of one training."""

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Unit
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from schemas.base import (
    FACTORY_PATTERN,
    NAME_PATTERN,
    Decimal,
    Name,
    PathText,
    Schema,
    Whole,
    omitted,
)
from schemas.config.data import (
    AnyBatching,
    AnyCorpus,
    AnyTokenizer,
    Filter,
    GrammarCorpus,
    TokenBudget,
    Tokenizer,
)
from schemas.config.facts import Numbers
from schemas.config.measurement import Measurement
from schemas.config.model import AnyLanguageModel, AnyModel, Sampling, Transformer
from schemas.config.parallel import AnyParallel, Fsdp, Machine, Single
from schemas.config.training import AnySchedule, Training
from schemas.errors import Unsupported

ScriptTechnique = Literal[
    "allocator_huge_pages",
    "allocator_kept",
    "bf16",
    "bf16_matmul",
    "channels_last",
    "chunked_loss",
    "compiled_blocks",
    "compiled_model",
    "cores_near_gpu",
    "cudnn_benchmark",
    "data_workers",
    "ddp_bucket_view",
    "ddp_buckets_100mb",
    "ddp_no_sync",
    "ddp_static_graph",
    "deferred_reads",
    "expandable_segments",
    "float8",
    "foreach_optimizer",
    "fp16",
    "freed_gradients",
    "fused_optimizer",
    "gc_off",
    "jemalloc",
    "kept_activations",
    "one_numa_node",
    "physical_cores",
    "pinned_memory",
    "pinned_threads",
    "recomputed_blocks",
    "sdpa_cudnn",
    "sdpa_flash",
    "sdpa_math",
    "sdpa_mem_efficient",
    "tf32",
]
"""Changes that need no knowledge of a script: transformer_core/tune/techniques."""

FactoryTechnique = Literal[ScriptTechnique, "accumulation_2", "ddp", "ddp_fp16_messages", "fsdp"]
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
    """Changes to try. Null: all that apply to the script on this machine, except recomputed_blocks and, on
    a CPU, compiled_model, deferred_reads and fp16."""
    verify: bool = True  # whether the changed script is run against the original


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
    the training on this machine, except accumulation_2, ddp_fp16_messages, recomputed_blocks and, on
    a CPU, compiled_model, deferred_reads and fp16."""
    steps: Annotated[int, Field(ge=3, le=100_000), Unit("steps")] | None = None
    """Optimizer steps that certificates compare. Null: six, or fewer where steps are slow."""
    applied: tuple[_Named, ...] = Field(default=(), max_length=64)
    """Techniques applied to your step before anything is tried: the baseline has them too."""
    verify: bool = True  # whether the changed files are run against the original ones


MOST_CHARACTERS = 10_000_000  # default maximum length of a text: long ones are cut into rows


class Translation(Schema):
    """Sentence pairs: an encoder-decoder learns to produce the target for a source, scored by
    BLEU."""

    kind: Literal["translation"] = "translation"


class LanguageModel(Schema):
    """Texts: a decoder learns to predict the next token, scored by loss, perplexity and bits per
    byte."""

    kind: Literal["language_model"]
    context: Annotated[int, Unit("tokens")] = Field(default=256, ge=2, le=1_000_000)
    """Tokens per row. Rows hold consecutive texts, each with an end token; a text that does not
    fit continues in the next row, which cannot see the earlier part."""
    texts: Literal["masked", "joined"] = "masked"
    """Whether attention stays within a text (masked) or spans the whole row (joined), which
    needs no mask. Either way every text begins with the same token."""
    prompt: Annotated[int, Unit("tokens")] = Field(default=16, ge=1, le=1_000_000)
    """Leading tokens of test texts that the trained model continues, for the report; must be
    fewer than context."""
    continuation: Annotated[int, Unit("tokens")] = Field(default=32, ge=1, le=1_000_000)
    """Maximum tokens in a continuation; with the prompt at most context."""
    sampling: Sampling = Sampling()
    """How tokens are sampled for the drawn continuations."""


AnyTask = Annotated[
    Translation | LanguageModel | ImportedTask | ScriptTask, Field(discriminator="kind")
]


def defaults_of(task: Any) -> dict[str, dict[str, Any]]:
    """The task-specific defaults for other sections of a study.

    ``task`` is the section as written; its schema reports any errors.
    """
    if isinstance(task, Schema):
        task = task.model_dump()
    if not isinstance(task, dict) or task.get("kind") != "language_model":
        return {}
    try:
        context = LanguageModel.model_validate(task).context
    except ValidationError:
        context = LanguageModel.model_fields["context"].default
    return {
        "corpus": {"kind": "grammar_documents"},
        "filter": {"max_characters": MOST_CHARACTERS, "max_tokens": context},
        "model": {"kind": "decoder_only"},
        "training": {"label_smoothing": 0.0},
    }


AnyTrained = Annotated[AnyModel | AnyLanguageModel, Field(discriminator="kind")]


class Sections(Schema):
    """Sections that a study sets for all its variants, and a run spec for one."""

    task: AnyTask = omitted(Translation())
    """Whether to train on pairs of sentences, on texts, with your own script, or with your own training step."""
    corpus: AnyCorpus = GrammarCorpus()  # the sentence pairs, or the texts of a language model
    filter: Filter = Filter()  # how unusable pairs or texts are handled
    tokenizer: AnyTokenizer = Tokenizer()  # how sentences become tokens
    batching: AnyBatching = TokenBudget()  # how pairs are grouped into global batches
    model: AnyTrained = Transformer()  # the network
    training: Training = Training()  # how it is trained
    machine: Machine = Machine()
    """The devices that distributed variants use; a single-device variant uses one."""
    measurement: Measurement = Measurement()  # the timed part of a run

    @model_validator(mode="before")
    @classmethod
    def _takes_defaults_of_the_task(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        for name, defaults in defaults_of(data.get("task")).items():
            section = _plain(data.get(name, {}))
            if isinstance(section, dict) and section.get("kind") in (None, defaults.get("kind")):
                filled[name] = defaults | section
        return filled

    @property
    def longest(self) -> int:
        """Maximum tokens of a pair including begin and end, or of a row of texts."""
        if isinstance(self.task, LanguageModel):
            return self.task.context
        return 2 * (self.filter.max_tokens + 1)


class RunSpec(Sections):
    """A variant fully resolved against its study: everything a run depends on, and nothing else."""

    variant: Name  # name of the variant
    parallel: AnyParallel = Single()  # how the work is distributed over devices
    no_meaning: str | None = omitted(None)
    """Why the variant's change does not apply to the task. It is then not trained: everything
    that would run it is unsupported, for this reason."""

    @model_validator(mode="before")
    @classmethod
    def _holds_what_a_run_depends_on(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # Specs made before 2026-11-30 have the study's evaluation, which changes no training.
        data = {name: section for name, section in data.items() if name != "evaluation"}
        parallel, machine = _plain(data.get("parallel", {})), _plain(data.get("machine", {}))
        sections = isinstance(parallel, dict) and isinstance(machine, dict)
        # Changing the device count then reruns only the distributed variants.
        if sections and parallel.get("kind", "single") == "single":
            alone = {"nodes": 1, "devices_per_node": 1, "link": None}
            return data | {"machine": machine | alone}
        return data

    def refuse_without_meaning(self) -> None:
        """Raise Unsupported if the variant's change does not apply to the task."""
        if self.no_meaning is not None:
            raise Unsupported(self.no_meaning)

    def with_training(self, **changes: Any) -> Self:
        """The spec with changed settings of its training."""
        training = self.training.model_copy(update=changes)
        return self.model_copy(update={"training": training})

    def compressing_at_once(self) -> Self:
        """The spec with messages that are compressed from the first steps on, for short trainings."""
        if (hook := self.parallel.message_hook) is None:
            return self
        parallel = self.parallel.model_copy(update={"hook": hook.at_once()})
        return self.model_copy(update={"parallel": parallel})

    @property
    def processes_per_node(self) -> int:
        """Processes on each host: one per device, except that DataParallel drives all from one."""
        return 1 if self.parallel.kind == "data_parallel" else self.machine.devices_per_node

    @property
    def launch(self) -> str:
        """The start of the command line that runs a module as its processes on each host."""
        nodes, each = self.machine.nodes, f"--nproc-per-node={self.processes_per_node}"
        several = f"--nnodes={nodes} --node-rank=NUMBER --master-addr=FIRST_HOST"
        ranks = f"torchrun {several if nodes > 1 else '--standalone'} {each} -m"
        return "python -m" if self.parallel.one_process else ranks

    @property
    def world_size(self) -> int:
        return self.machine.nodes * self.processes_per_node

    @property
    def processes_per_machine(self) -> int:
        """Processes that share cores and memory: one machine emulates both hosts of a link."""
        return self.world_size if self.machine.link else self.processes_per_node

    @property
    def parts(self) -> int:
        """Micro-batches that a global batch is split into, over all devices."""
        devices = self.machine.nodes * self.machine.devices_per_node
        return devices * self.training.accumulation.micro_batches

    @property
    def schedule(self) -> AnySchedule:
        """The learning rate over the steps, of a global batch of this size."""
        given, scale = self.training.schedule, getattr(self.batching, "scale", 1.0)
        how = self.training.rate_follows_batch
        if how == "none" or scale == 1.0:
            return given
        name = "factor" if given.kind == "noam" else "peak"
        grown = getattr(given, name) * (scale**0.5 if how == "square_root" else scale)
        return given.model_copy(update={name: grown})

    @property
    def numbers(self) -> Numbers:
        """Number formats of a step: those of its precision, unless the strategy or model rounds
        more."""
        found = self.training.precision.numbers
        gathered = isinstance(self.parallel, Fsdp) and self.parallel.bf16
        if not gathered and getattr(self.model, "residual", "") != "bf16":
            return found
        rounded = found.rounded_weights or gathered
        return replace(
            found, products="bf16", results=True, everything=True, rounded_weights=rounded
        )


def _plain(section: Any) -> Any:
    """A section as a mapping, whether from a file or from code."""
    return section.model_dump() if isinstance(section, Schema) else section
