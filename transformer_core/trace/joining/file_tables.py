"""What is found in the files of profilers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformer_core.trace.events.event_table import Events


@dataclass
class ProcessTable:
    """One process of a file, and its rows."""

    path: Path
    rank: int | None
    ranks: int | None
    rows: Events


@dataclass
class FileTables:
    """What a file of a profiler holds."""

    format: Literal["nsys", "kineto"]
    version: str | None
    notes: list[str]
    processes: list[ProcessTable]
