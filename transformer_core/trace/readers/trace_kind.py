"""What a reader gives: the processes of one file, and which format it had."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.trace.readers.process_trace import ProcessTrace


@dataclass(frozen=True)
class Source:
    """One file of a profiler."""

    format: Literal["nsys", "kineto"]
    version: str | None
    processes: list[ProcessTrace]
    notes: list[str] = field(default_factory=list)


class TraceError(ConfigError):
    """A file of a profiler that cannot be used, said in one sentence."""

    def __init__(self, path: Path, message: str, remedy: str) -> None:
        super().__init__([ConfigProblem(str(path), WHOLE_FILE, None, message, remedy)])
        self.sentence = f"{path} {message}: {remedy}"
        self._parts = (path, message, remedy)

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[type["TraceError"], tuple[Path, str, str]]:
        return TraceError, self._parts


def unusable(path: Path, message: str, remedy: str) -> TraceError:
    """The error for a file that cannot be read."""
    return TraceError(path, message, remedy)
