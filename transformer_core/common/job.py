"""The base of all orders that rules write: see :mod:`transformer_core.run.job`, which runs them."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from schemas.base import Schema


class Job(Schema):
    """An order that a rule writes; each kind adds its files and settings."""

    # In JSON, pydantic takes no default of a path.
    model_config = ConfigDict(validate_default=False)

    kind: ClassVar[str]  # its name among :data:`transformer_core.study.kinds.JOBS`

    @abstractmethod
    def run(self, log_file: Path | None) -> int | None:
        """Runs the job; returns the exit code. Plain log lines go to ``log_file``, too."""
