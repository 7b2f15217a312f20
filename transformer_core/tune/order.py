"""The order that starts a side. Imports only the standard library: modules of the user's script may
have any other name."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Boundary = Literal["optimizer", "backward"]

SIDE = "TUNE_TRAINING_SIDE"  # environment variable that holds the name of a side in its processes
BEGAN = "TUNE_TRAINING_BEGAN"
"""Environment variable that holds the start times of the user's command and of its workflow."""
UNOBSERVED = "cannot be observed: "
"""Prefix of a side's message if it cannot observe the training of its script."""
OWN_FAULT = "an error in this tool: "
"""Prefix of a side's message if not the script failed, but what observes it."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """How a copy of a script differs from it, apart from techniques."""

    noise: float = 0.0  # relative size of random changes to the first weights
    draw: int = 0  # number of these random changes: each has others
    dropout: bool = True  # whether dropout layers drop
    held: bool = False  # whether weights are reset after each step: all gradients are of the first
    profiled: bool = False  # whether torch.profiler will record some steps
    probe_seconds: float = 60.0  # for the repeated calls of an audit


@dataclass(frozen=True)
class Order(Copy):
    side: str  # name of the side
    command: tuple[str, ...]  # script and its arguments; instead of a file also ``-m`` and a module
    directory: str  # working directory of the script, perhaps a copy of the user's
    coordinator: str  # the file with the coordinator's address
    record: str  # folder for the records that the certificate compares
    techniques: tuple[str, ...] = ()  # changes to apply, by name
    seed: int = 0  # number to add to every seed that the script sets
    facts: dict[str, Any] = field(default_factory=dict)  # from an earlier session, for techniques
    boundary: Boundary = "optimizer"  # where a step ends
    launched: bool = False  # whether a launcher starts the script, perhaps several times
    original: str = ""  # the user's folder, if ``directory`` is a copy of it
    whole: bool = False
    """Whether sharded tensors are recorded whole, to compare them with another number of ranks."""

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Order":
        found = json.loads(file.read_text(encoding="utf-8"))
        lists = {name: tuple(found[name]) for name in ("command", "techniques")}
        return cls(**found | lists)
