"""What a reader gives: the processes of one file, and which format it had."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from schemas.errors import ConfigError, ConfigProblem
from transformer_core.profiling.trace import ProcessTrace


@dataclass(frozen=True)
class Source:
    """One file of a profiler."""

    format: Literal["nsys", "kineto"]
    version: str | None
    processes: list[ProcessTrace]
    notes: list[str] = field(default_factory=list)


def unusable(path: Path, message: str, remedy: str) -> ConfigError:
    """The error for a file that cannot be read."""
    return ConfigError([ConfigProblem(str(path), "(file)", None, message, remedy)])
