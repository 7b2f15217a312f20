"""Studies, variants and run specs."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from schemas.base import Count, Name, Schema
from schemas.data import (
    AnyBatching,
    AnyCorpus,
    AnyTokenizer,
    Filter,
    GrammarCorpus,
    TokenBudget,
    Tokenizer,
)
from schemas.equivalence import AnyEquivalence, Certification
from schemas.errors import nearest
from schemas.measure import Comparing, Measurement, SelfTest
from schemas.memory import MemoryUse
from schemas.model import AnyModel, Transformer
from schemas.parallel import AnyParallel, Machine, Single
from schemas.profile import Limits, Profiling
from schemas.projection import LinkCheck, Projecting
from schemas.search import Search
from schemas.train import Evaluation, Training


class RunSpec(Schema):
    """A variant fully resolved against its study: all that a run depends on, nothing else."""

    variant: Name
    """Name of the variant."""
    corpus: AnyCorpus = GrammarCorpus()
    """The sentence pairs."""
    filter: Filter = Filter()
    """What happens to pairs that cannot be used."""
    tokenizer: AnyTokenizer = Tokenizer()
    """How sentences become tokens."""
    batching: AnyBatching = TokenBudget()
    """How pairs become global batches."""
    model: AnyModel = Transformer()
    """The network."""
    training: Training = Training()
    """How it is trained."""
    parallel: AnyParallel = Single()
    """How the work is divided over devices."""
    machine: Machine = Machine()
    """The devices it asks for."""
    measurement: Measurement = Measurement()
    """What is timed."""
    evaluation: Evaluation = Evaluation()
    """How the trained model is judged."""

    @model_validator(mode="before")
    @classmethod
    def _single_takes_one_device(cls, data: Any) -> Any:
        # So that a change of the device count reruns the distributed variants only.
        if not isinstance(data, dict):
            return data
        parallel, machine = _plain(data.get("parallel", {})), _plain(data.get("machine", {}))
        sections = isinstance(parallel, dict) and isinstance(machine, dict)
        if sections and parallel.get("kind", "single") == "single":
            alone = {"nodes": 1, "devices_per_node": 1, "link": None}
            return data | {"machine": machine | alone}
        return data

    @property
    def processes_per_node(self) -> int:
        """Processes on each host: one per device, but DataParallel drives all from one."""
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


def _plain(section: Any) -> Any:
    """A section as a mapping, whether it comes from a file or from code."""
    return section.model_dump() if isinstance(section, Schema) else section


DATA_SECTIONS = frozenset({"corpus", "filter", "tokenizer"})
"""Sections that all variants of a study share, so that they train on the same sentences."""


class Variant(Schema):
    """One change to a parent variant."""

    parent: Name | None = None
    """Variant that this one changes; null for the study as it stands."""
    change: dict[str, Any] = Field(default_factory=dict)
    """Sections and fields of the run spec, as in a study, with their new values."""
    equivalence: AnyEquivalence
    """How closely it must train the same model as the single-device fp32 reference: a class with
    its bounds, or the name of a class for the usual bounds."""
    tests: list[str] = Field(default_factory=list)
    """Rows of the original study that it bears on: techniques A1-A19, claims C1-C16."""
    summary: str = Field(min_length=1)
    """What it changes and why one would, in a sentence."""

    @field_validator("change")
    @classmethod
    def _changes_sections_of_a_run(cls, change: dict[str, Any]) -> dict[str, Any]:
        known = set(RunSpec.model_fields) - DATA_SECTIONS - {"variant"}
        for section in change:
            if section in DATA_SECTIONS:
                raise PydanticCustomError(
                    "data_section",
                    "holds {section}, but the variants of a study share their data",
                    {"section": section, "remedy": f"put {section} in a study of its own"},
                )
            if section not in known:
                raise PydanticCustomError(
                    "unknown_section",
                    "holds {section}, which is not a section of a run spec",
                    {"section": section, "remedy": nearest(section, known)},
                )
        return change


Variants = dict[Name, Variant]
"""config/variants.yaml: variants by name."""


class Study(Schema):
    """One study file: what all variants share, and the variants to run."""

    name: Name
    """Name of the study. Results of another study are not overwritten silently."""
    title: str = Field(default="Transformer training, measured", min_length=1)
    """Heading of the report."""
    corpus: AnyCorpus = GrammarCorpus()
    """The sentence pairs."""
    filter: Filter = Filter()
    """What happens to pairs that cannot be used."""
    tokenizer: AnyTokenizer = Tokenizer()
    """How sentences become tokens."""
    batching: AnyBatching = TokenBudget()
    """How pairs become global batches."""
    model: AnyModel = Transformer()
    """The network."""
    training: Training = Training()
    """How it is trained."""
    machine: Machine = Machine()
    """The devices that distributed variants ask for."""
    measurement: Measurement = Measurement()
    """What is timed."""
    repeats: Count = 1
    """Runs of each variant, each in fresh processes: for its quality, memory and throughput."""
    comparison: Comparing = Comparing()
    """How variants are timed against their reference."""
    comparisons: list[tuple[Name, Name]] = Field(default_factory=list)
    """Further comparisons, each as [variant, reference]. Every variant is compared with the
    baseline anyway."""
    self_test: SelfTest = SelfTest()
    """How the protocol of comparisons is tested."""
    profiling: Profiling = Profiling()
    """How variants are profiled."""
    limits: Limits = Limits()
    """How the limits of the machine are measured."""
    evaluation: Evaluation = Evaluation()
    """How the trained models are judged."""
    certificate: Certification = Certification()
    """How it is shown that variants train the same model."""
    search: Search | None = Search()
    """The search for the best combination of techniques; null for none."""
    link_check: LinkCheck | None = None
    """Whether the emulated link is held against a real one, and how; null for not."""
    projection: Projecting | None = Projecting()
    """How step times are projected to more devices; null for not."""
    variants: list[Name] = Field(min_length=1)
    """Names from config/variants.yaml."""
    baseline: Name = "single"
    """The variant that the others are compared with; one of variants."""
    memory: MemoryUse | None = MemoryUse()
    """What is found out about memory; null for nothing."""
    traces: dict[Name, list[str]] = Field(default_factory=dict)
    """Profiles of your own, by a name for each: SQLite exports of Nsight Systems or Kineto traces
    of torch.profiler (.json, .json.gz), one file per rank. They are read, not made."""
    replace_results: bool = False
    """Allow results/ to be overwritten when it holds another study."""

    @field_validator("memory")
    @classmethod
    def _searches_for_its_variants(
        cls, memory: MemoryUse | None, info: ValidationInfo
    ) -> MemoryUse | None:
        known = info.data.get("variants", [])
        for name in memory.largest_batch.variants if memory else []:
            if known and name not in known:
                raise PydanticCustomError(
                    "not_in_study",
                    "searches for the largest batch of {name}, which the study does not run",
                    {"name": name, "remedy": nearest(name, known)},
                )
        return memory

    @field_validator("traces")
    @classmethod
    def _have_names_of_their_own(
        cls, traces: dict[str, list[str]], info: ValidationInfo
    ) -> dict[str, list[str]]:
        for name, files in traces.items():
            if name in info.data.get("variants", ()):
                raise PydanticCustomError(
                    "name_of_variant",
                    "has {name}, but results/profiles/{name} is that of a variant",
                    {"name": name, "remedy": "choose another name"},
                )
            if not files:
                raise PydanticCustomError(
                    "no_files", "has no file for {name}", {"name": name, "remedy": "name a file"}
                )
        return traces
