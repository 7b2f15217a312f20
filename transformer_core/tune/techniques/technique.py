"""One change to how a script trains: the base class of the techniques in this folder."""

import shlex
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import nn

from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source

Rounding = Literal["float64", "exact", "float32", "tf32", "bfloat16", "float8"]
"""The coarsest rounding that a technique adds: how far its numbers may be from the script's own."""

NOISE: dict[Rounding, float] = {
    "float64": 2.0**-53,
    "exact": 2.0**-24,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8": 2.0**-4,
}
"""Half a unit in the last place of each format, relative to the number; the finest format first."""


class Technique:
    """A change to a training script, applied from outside.

    Set the class variables, and override the methods that the change needs.
    """

    name: ClassVar[str]
    words: ClassVar[str]  # the change it makes, in the report's words
    group: ClassVar[str]  # techniques of one group exclude each other
    rounding: ClassVar[Rounding] = "float32"
    slow: ClassVar[bool] = False
    """Whether its first step takes much longer than the others: it is tried last."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the loop that trains the parts of a factory."""
    divides: ClassVar[bool] = False
    """Whether ranks or micro-batches share the batch, in that loop, which a script does not have: only all of
    them together do the work of the script."""
    in_source: ClassVar[bool] = False
    """Whether :meth:`edit` also makes the change when it is tried: no hook of torch can."""
    place: ClassVar[int] = 2
    """Its place among the techniques of a process, which change a module one after another: 0 if it replaces
    modules or their calls, which would undo changes of calls, and 1 if others change what its calls return."""
    usual: ClassVar[bool] = True  # whether it is tried by default, without being named
    advice: ClassVar[str] = ""
    """A sentence that tells the user how to make the change; facts and attributes of ``self`` in braces
    are filled in."""
    for_trainer: ClassVar[str] = ""
    """The same for a script whose loop is that of transformers' Trainer."""
    idle: ClassVar[str] = ""
    """Why it has no effect if it was never applied; empty if :attr:`applied` does not count."""
    applied = 0  # how often it was applied in this process
    facts: dict[str, Any]  # the coordinator's facts about the script, in the script's process

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        """Why it cannot be tried on a script with these facts (:meth:`Watch.facts`); None if it
        can."""
        return None

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        """Environment variables of the process. ``facts`` is empty before anything is known."""
        return {}

    def prepare(self, watch: Watch) -> None:
        """Change torch before the script's first line."""

    def module(self, module: nn.Module) -> None:
        """Change an outermost module of the training before its first call."""

    def boundary(self) -> None:
        """Called after each step."""

    def without_effect(self) -> str | None:
        """Why it has changed nothing so far; None if it has changed something."""
        return self.idle if self.idle and not self.applied else None

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        """Make the change in the script itself. False if only :meth:`lines` can describe it."""
        return False

    def lines(self, facts: dict[str, Any]) -> list[str]:
        """Instructions that replace a diff: a sentence, or lines for the shell."""
        if self.for_trainer and facts["caller"] in ("transformers", "trl"):
            return [self.for_trainer]
        if self.advice:
            return [self.advice.format(self=self, **facts)]
        given = self.environment(facts)
        return [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
