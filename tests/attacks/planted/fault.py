"""One fault: its patch, and the variant whose certificate must show it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.attacks.planted import changes
from tests.attacks.planted.changes import Change
from tests.attacks.planted.planting import TAKE_A_FUNCTION, Patch, calling, swap


@dataclass(frozen=True)
class Fault:
    """A fault, and the variant that shows it."""

    name: str
    family: str
    patch: Patch
    change: Change = field(default_factory=dict)  # of the variant
    base: Change = field(default_factory=dict)  # of the study itself, and so of the reference
    kind: str = "tolerance"  # class of the variant
    ranks: int = 1
    dropout: float = 0.0  # of the study
    late: Change | None = None  # schedule and steps of the timed run, for the steps after resuming
    missed: str = ""  # why no certificate can show it, if none can


FAULTS: list[Fault] = []
"""The faults of all imported modules."""
HARMLESS: list[Fault] = []
"""Their changes that train the same model, which no certificate may refuse."""


def fault(
    name: str,
    family: str,
    where: Any,
    attribute: str = "",
    function: Any = None,
    change: Change | None = None,
    base: Change | None = None,
    made: bool = False,
    into: list[Fault] = FAULTS,
    **more: Any,
) -> Callable[[Any], Any]:
    """Adds a fault to the list ``into``. Its patch is ``where`` or is made from ``function``, by default the decorated one.
    With an ``attribute`` (or entry) of ``where``, the function replaces it and gets the original
    before the arguments; with ``made``, the function gets the original alone and returns the
    replacement. Without an attribute, ``where`` is one of :data:`TAKE_A_FUNCTION`."""

    def add(patch: Patch) -> None:
        into.append(Fault(name, family, patch, change or {}, base or {}, **more))

    def plant(function: Any) -> Any:
        made_of = function if made else calling(function)
        add(swap(where, attribute, made_of) if attribute else where(function))
        return function

    if function is not None:
        plant(function)
    elif not attribute and where not in TAKE_A_FUNCTION:
        add(where)
    return plant


def faults_of(family: str, *places: Any, **usual: Any) -> Callable[..., Any]:
    """:func:`fault` for one family, with the place and settings that its faults share."""
    return lambda name, *more, **own: fault(name, family, *places, *more, **usual | own)


dropping = faults_of("dropout", **changes.DROPPING)
reduced = faults_of("precision", kind="statistical", change=changes.BF16)
in_ddp = faults_of("DDP", ranks=2, change=changes.DDP)
in_fsdp = faults_of("FSDP", ranks=2, change=changes.FSDP)
in_four = faults_of("DDP", ranks=4, change=changes.DDP_OF_FOUR)
in_four_shards = faults_of("FSDP", ranks=4, change=changes.FSDP_OF_FOUR)
in_tensor = faults_of("tensor", ranks=2, change=changes.TENSOR, base=changes.GPT2)
in_groups = faults_of("tensor", ranks=4, change=changes.TENSOR_OF_FOUR, base=changes.GPT2)
in_central = faults_of("central", ranks=2, change=changes.CENTRAL)
in_hooks = faults_of("hooks", ranks=2)
