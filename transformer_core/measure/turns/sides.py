"""The sides of a comparison: run specs with names, whose processes take turns."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from transformer_core.measure.memory.predicted.sides_together import Keeping
from transformer_core.measure.turns.order import TurnsOrder
from transformer_core.run.launcher import uses_gpus
from transformer_core.run.supervisor import start_workers

_LEAVE_SECONDS = 1.0
"""How long a side may take to end that is not needed any more. All it has to tell is told."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a name for a run spec."""

    name: str
    spec: RunSpec
    planted: float | None = None
    """Share by which its steps are slowed down; None where nothing is tested, and no step waits
    for its device."""
    order: type[TurnsOrder] = TurnsOrder
    """What its processes are asked for."""


def for_devices(comparing: Comparing, specs: Sequence[RunSpec]) -> Comparing:
    """``comparing`` with what it takes at least on GPUs, if any of ``specs`` runs on them here."""
    if not any(map(uses_gpus, specs)):
        return comparing
    least = {name: max(getattr(comparing, name), value) for name, value in comparing.on_gpu}
    return comparing.model_copy(update=least)


def in_order(sides: Sequence[Side]) -> list[Side]:
    """The order of turns: the first of ``sides`` in the middle."""
    reference, *others = sides
    middle = len(others) // 2
    return [*others[:middle], reference, *others[middle:]]


def start_side(
    side: Side,
    place: int,
    data: Path,
    folder: Path,
    coordinator: Path,
    command: str,
    session: str,
    keeps: Keeping = "all",
) -> subprocess.Popen[bytes]:
    """Start this host's processes of a side, which come to the coordinator that the file ``coordinator`` names,
    and leave below ``folder`` how they ended.

    ``place`` is the number of the side; Unsupported where this host cannot. Each ``session`` has
    processes of its own origin: forks of one process have their code and data at the same
    addresses, which is among what differs between sessions.
    """
    order = side.order(
        spec=side.spec,
        data=data,
        output=folder / side.name,
        command=command,
        side=side.name,
        coordinator=coordinator,
        keeps=keeps,
        planted=side.planted,
    )
    return start_workers(order, place, session)


def stop_sides(children: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended, but not long."""
    end = time.monotonic() + _LEAVE_SECONDS
    for child in children.values():
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
