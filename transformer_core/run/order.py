"""What a job asks of its worker processes: one typed order, in one JSON file.

The job writes the file into the folder that it works in, and every worker reads it:
``python -m WORKER FOLDER/order.json``. Of a run over several hosts each host writes a file of its
own, from the same command line.
"""

from pathlib import Path
from typing import Self

from schemas.base import Schema
from schemas.config.run_spec import RunSpec
from transformer_core.common.files import write_text
from transformer_core.common.records import read_record

FILE = "order.json"


class Order(Schema):
    """What every worker must know; each measurement adds what it needs."""

    spec: RunSpec
    """What is run."""
    output: Path
    """Folder of the results, of this order, and of what workers say that do not finish."""
    command: str
    """The command that makes the result again."""
    log_file: Path | None = None
    """File for plain log lines."""

    @property
    def title(self) -> str:
        """What is under way, for the log."""
        return self.spec.variant

    def write(self, node_rank: int = 0) -> Path:
        """Write the order for the workers of a host; the file."""
        file = self.output / (f"host-{node_rank}-{FILE}" if node_rank else FILE)
        write_text(file, self.model_dump_json(indent=1) + "\n")
        return file

    @classmethod
    def read(cls, file: Path) -> Self:
        """The order in ``file``; ConfigError if it is missing or another one."""
        return read_record(file, cls)


def shard_manifests(data: Path) -> list[Path]:
    """What a training reads of a corpus below ``data``: the manifests of its shards."""
    return [data / "shards" / split / "manifest.json" for split in ("train", "validation")]


class TrainingOrder(Order):
    """An order to train on a corpus."""

    data: Path
    """results/data/<corpus>, with the shards."""
