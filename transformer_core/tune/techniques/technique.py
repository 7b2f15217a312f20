"""One change to how a script trains: the base of the files beside this one."""

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from torch import nn

    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source

Rounding = Literal["exact", "float32", "tf32", "bfloat16", "float8"]
"""The coarsest rounding that a technique adds: how far its numbers may lie from the script's own."""

NOISE: dict[Rounding, float] = {
    "exact": 2.0**-24,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8": 2.0**-4,
}
"""Half a unit in the last place of each format, relative to the number."""


class Technique:
    """A change to a training script, applied from outside.

    Set the class variables, and override what the change needs.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    """The change it makes, in the report's words."""
    group: ClassVar[str]
    """Techniques of one group exclude each other."""
    rounding: ClassVar[Rounding] = "float32"
    slow: ClassVar[bool] = False
    """Whether its first step takes much longer than the others: it is tried last."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the loop around a factory's parts."""
    needs_factory: ClassVar[bool] = False
    """Whether it changes the loop alone: a script has no such seams."""
    divides: ClassVar[bool] = False
    """Whether ranks or micro-batches share the batch, so that only all of them together do what
    the script does."""
    in_source: ClassVar[bool] = False
    """Whether it is tried by :meth:`edit`, too: no hook of torch can make the change."""
    usual: ClassVar[bool] = True
    """Whether it is tried unless others are named."""
    facts: dict[str, Any]
    """The coordinator's facts about the script, in its process."""

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        """Why it cannot be tried with a script of which :meth:`Watch.facts` are known; None if it
        can."""
        return None

    def environment(self, facts: dict[str, Any]) -> dict[str, str]:
        """Environment variables of the process. ``facts`` is empty before anything is known."""
        return {}

    def prepare(self, watch: "Watch") -> None:
        """Change torch before the script's first line."""

    def module(self, module: "nn.Module") -> None:
        """Change an outermost module of the training before its first call."""

    def boundary(self, step: int) -> None:
        """Called after ``step`` steps."""

    def without_effect(self, watch: "Watch") -> str | None:
        """Why it changed nothing in the steps so far; None if it did."""
        return None

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        """Make the change in the script itself. False where only :meth:`lines` can say it."""
        return False

    def lines(self, facts: dict[str, Any]) -> list[str]:
        """Instructions that replace a diff: lines for the shell, or a sentence."""
        given = self.environment(facts)
        return [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
