"""The order of a job to its worker processes: one typed order, in one JSON file.

The job writes the file into its working folder, and every worker reads it: ``python -m
transformer_core.run.worker FOLDER/order.json``. In a run over several hosts, each host writes its
own file, from the same command line.
"""

import importlib
import json
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from schemas.base import Schema
from schemas.config.run_spec import RunSpec
from transformer_core.common.endings import reproducing_command
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.study.kinds import parse

FILE = "order.json"


class Order(Schema):
    """The part of an order that every worker needs; each measurement adds its own."""

    work: ClassVar[str] = ""
    """Module whose ``work`` carries out the order; by default the one that defines its class."""
    worker: ClassVar[str] = "transformer_core.run.worker"  # program of the processes
    shares_cores: ClassVar[bool] = False  # whether other jobs may use the same cores meanwhile

    spec: RunSpec  # the run spec to execute
    output: Path  # folder for the results, this order, and the reports of unfinished workers
    command: str  # the command that reproduces the result
    log_file: Path | None = None  # file for plain log lines

    @property
    def title(self) -> str:
        """A name of this work, for the log."""
        return self.spec.variant

    def write(self, node_rank: int = 0) -> Path:
        """Writes the order for the workers of a host; returns the file."""
        file = self.output / (f"host-{node_rank}-{FILE}" if node_rank else FILE)
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        fields = {"kind": kind, **self.model_dump(mode="json")}
        write_text(file, json.dumps(fields, indent=1) + "\n")
        return file

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads the order in ``file``; ConfigError if it is missing or of another kind."""
        text = file.read_text()
        kind = json.loads(text)["kind"]
        order: Any = parse(text, {kind: kind}, str(file))
        assert isinstance(order, cls), f"{file}: {order.kind} is no {cls.__name__}"
        return order

    @property
    def module(self) -> Any:
        """The module whose ``work`` carries out this order."""
        return importlib.import_module(self.work or type(self).__module__)


def shard_manifests(data: Path) -> list[Path]:
    """The manifests of the shards below ``data`` that a training reads."""
    return [data / "shards" / split / "manifest.json" for split in ("train", "validation")]


class TrainingOrder(Order):
    data: Path  # results/data/<corpus>, with the shards


Ordered = TypeVar("Ordered", bound=TrainingOrder)


class TrainingJob(Job):
    """An order for a variant on a corpus."""

    spec: Path  # spec.json of the variant
    data: Path  # results/data/<corpus>
    output: Path  # output file, or a folder for several files

    def order(
        self, kind: type[Ordered], log_file: Path | None, target: Path, **more: Any
    ) -> Ordered:
        """The order to the workers of this job, which makes ``target``. They work in the folder of
        that name, unless ``more`` gives another ``output``."""
        fields = {"spec": read_record(self.spec, RunSpec), "data": self.data, "log_file": log_file}
        fields |= {"output": target.with_suffix(""), "command": reproducing_command(target)}
        return kind.model_validate(fields | more)
