"""How a script is started. Only the standard library is imported here: the user's script may have
modules of any other name."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Boundary = Literal["optimizer", "backward"]

SIDE = "TUNE_TRAINING_SIDE"
"""Environment variable with the name of a side, in its processes."""
UNOBSERVED = "cannot be observed: "
"""Prefix of a side's message about a script whose training it cannot observe."""


@dataclass(frozen=True)
class Order:
    """The order for one process of a side."""

    side: str
    """Name of the side."""
    command: tuple[str, ...]
    """Script and its arguments; ``-m`` and a module instead of a file work too."""
    directory: str
    """Working directory of the script."""
    coordinator: str
    """The file with the coordinator's address."""
    record: str
    """Folder for what the certificate compares."""
    techniques: tuple[str, ...] = ()
    """Changes to apply, by their names in the registry."""
    seed: int = 0
    """Number that is added to every seed that the script sets."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts observed of the script before, for techniques that need them."""
    boundary: Boundary = "optimizer"
    """Where a step ends."""
    noise: float = 0.0
    """Relative size of random changes to the first weights: a measured floor of rounding."""
    dropout: bool = True
    """Whether dropout layers drop."""
    held: bool = False
    """Whether weights are put back after each step, so that all gradients are those of the first."""
    profiled: bool = False
    """Whether some steps are to be recorded by torch.profiler."""
    whole: bool = False
    """Whether sharded tensors are recorded whole, for comparison with another number of ranks."""

    def write(self, file: Path) -> None:
        """Write the order for the process that carries it out."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Order":
        """The order in ``file``."""
        found = json.loads(file.read_text(encoding="utf-8"))
        lists = {name: tuple(found[name]) for name in ("command", "techniques")}
        return cls(**found | lists)
