"""The order that starts a side. Imports only the standard library: modules of the user's script may
have any other name."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Boundary = Literal["optimizer", "backward"]

SIDE = "TUNE_TRAINING_SIDE"
"""Environment variable that holds the name of a side in its processes."""
UNOBSERVED = "cannot be observed: "
"""Prefix of a side's message if it cannot observe the training of its script."""


@dataclass(frozen=True)
class Order:
    """The order for one process of a side."""

    side: str
    """Name of the side."""
    command: tuple[str, ...]
    """Script and its arguments; instead of a file also ``-m`` and a module."""
    directory: str
    """Working directory of the script."""
    coordinator: str
    """The file with the coordinator's address."""
    record: str
    """Folder for the records that the certificate compares."""
    techniques: tuple[str, ...] = ()
    """Changes to apply, by name."""
    seed: int = 0
    """Number to add to every seed that the script sets."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about the script from an earlier session, for techniques that need them."""
    boundary: Boundary = "optimizer"
    """Where a step ends."""
    noise: float = 0.0
    """Relative size of random changes to the first weights, which measure the floor of rounding."""
    dropout: bool = True
    """Whether dropout layers drop."""
    held: bool = False
    """Whether weights are reset after each step, so that all gradients are those of the first weights."""
    profiled: bool = False
    """Whether torch.profiler will record some steps."""
    whole: bool = False
    """Whether sharded tensors are recorded whole, to compare them with another number of ranks."""

    def write(self, file: Path) -> None:
        """Write the order to ``file``."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Order":
        """The order in ``file``."""
        found = json.loads(file.read_text(encoding="utf-8"))
        lists = {name: tuple(found[name]) for name in ("command", "techniques")}
        return cls(**found | lists)
