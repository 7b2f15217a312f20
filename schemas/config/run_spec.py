"""Run specs, and the sections that they share with studies."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from schemas.base import Name, Schema
from schemas.config.batching import AnyBatching, TokenBudget
from schemas.config.corpus import AnyCorpus, Filter, GrammarCorpus
from schemas.config.decoder_only import AnyLanguageModel
from schemas.config.facts import Numbers
from schemas.config.measurement import Measurement
from schemas.config.model import AnyModel, Transformer
from schemas.config.parallel import AnyParallel, Fsdp, Machine, Single
from schemas.config.task import AnyTask, LanguageModel, Translation, defaults_of
from schemas.config.tokenizer import AnyTokenizer, Tokenizer
from schemas.config.training import Evaluation, Training
from schemas.errors import Unsupported

AnyTrained = Annotated[AnyModel | AnyLanguageModel, Field(discriminator="kind")]


class Sections(Schema):
    """Sections that a study sets for all its variants, and a run spec for one."""

    # Omitted if it is the default, so that run specs older than tasks keep their hashes.
    task: AnyTask = Field(default=Translation(), exclude_if=lambda task: task == Translation())
    """The task: translation of sentence pairs, or a language model of texts."""
    corpus: AnyCorpus = GrammarCorpus()
    """The sentence pairs, or the texts of a language model."""
    filter: Filter = Filter()
    """How unusable pairs or texts are handled."""
    tokenizer: AnyTokenizer = Tokenizer()
    """How sentences become tokens."""
    batching: AnyBatching = TokenBudget()
    """How pairs are grouped into global batches."""
    model: AnyTrained = Transformer()
    """The network."""
    training: Training = Training()
    """How it is trained."""
    machine: Machine = Machine()
    """The devices that distributed variants use; a single-device variant uses one."""
    measurement: Measurement = Measurement()
    """The timed part of a run."""
    evaluation: Evaluation = Evaluation()
    """How trained models are evaluated."""

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

    variant: Name
    """Name of the variant."""
    parallel: AnyParallel = Single()
    """How the work is distributed over devices."""
    # Omitted if there is none, so that older run specs keep their hashes.
    no_meaning: str | None = Field(default=None, exclude_if=lambda reason: reason is None)
    """Why the variant's change does not apply to the task. It is then not trained: everything
    that would run it is unsupported, for this reason."""

    @model_validator(mode="before")
    @classmethod
    def _single_takes_one_device(cls, data: Any) -> Any:
        # Changing the device count then reruns only the distributed variants.
        if not isinstance(data, dict):
            return data
        parallel, machine = _plain(data.get("parallel", {})), _plain(data.get("machine", {}))
        sections = isinstance(parallel, dict) and isinstance(machine, dict)
        if sections and parallel.get("kind", "single") == "single":
            alone = {"nodes": 1, "devices_per_node": 1, "link": None}
            return data | {"machine": machine | alone}
        return data

    def refuse_without_meaning(self) -> None:
        """Raise Unsupported if the variant's change does not apply to the task."""
        if self.no_meaning is not None:
            raise Unsupported(self.no_meaning)

    @property
    def processes_per_node(self) -> int:
        """Processes on each host: one per device, except that DataParallel drives all from one."""
        return 1 if self.parallel.kind == "data_parallel" else self.machine.devices_per_node

    @property
    def world_size(self) -> int:
        """Processes of a run."""
        return self.machine.nodes * self.processes_per_node

    @property
    def parts(self) -> int:
        """Micro-batches that a global batch is split into, over all devices."""
        devices = self.machine.nodes * self.machine.devices_per_node
        return devices * self.training.accumulation.micro_batches

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
