"""Run specs, and the sections that they share with studies."""

from typing import Any

from pydantic import model_validator

from schemas.base import Name, Schema
from schemas.config.batching import AnyBatching, TokenBudget
from schemas.config.corpus import AnyCorpus, Filter, GrammarCorpus
from schemas.config.measurement import Measurement
from schemas.config.model import AnyModel, Transformer
from schemas.config.parallel import AnyParallel, Machine, Single
from schemas.config.tokenizer import AnyTokenizer, Tokenizer
from schemas.config.training import Evaluation, Training


class Sections(Schema):
    """What a study says for all its variants, and a run spec for one."""

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
    """The devices that distributed variants ask for; a single one takes one."""
    measurement: Measurement = Measurement()
    """What is timed."""
    evaluation: Evaluation = Evaluation()
    """How the trained models are judged."""


class RunSpec(Sections):
    """A variant fully resolved against its study: all that a run depends on, nothing else."""

    variant: Name
    """Name of the variant."""
    parallel: AnyParallel = Single()
    """How the work is divided over devices."""

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
