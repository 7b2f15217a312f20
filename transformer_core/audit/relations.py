"""The relations that a training must have to itself, and the findings of an audit about them. Imports no
torch: a command line is read before anything starts."""

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

from transformer_core.tune.program import is_own

RELATIONS = {
    "repeat": "Two runs are the same",
    "parts": "A batch in parts gives the gradient of the whole",
    "ranks": "All ranks together train one model",
    "recomputed": "Recomputed layers give the same results",
    "compiled": "Compiled code gives the results of eager code",
    "samples": "Other samples do not change a prediction",
    "later": "Later tokens do not change a prediction",
    "shift": "Each target is the next token",
    "padding": "Padding changes no prediction and no loss",
    "documents": "Other documents in a packed row do not change a prediction",
    "inputs": "Each argument of the model changes its result",
    "axes": "A new shape keeps the order of the axes",
    "loss": "The loss gets what its formula expects",
    "trained": "Trainable tensors are trained, and frozen ones are not",
    "update": "The update follows the optimizer's formula",
    "zero": "Gradients begin at zero and are complete when they are used",
    "schedule": "The schedule moves once a step",
    "slope": "A backward pass written by hand is the slope of its forward pass",
    "precision": "Modules give the results of 64 bits, within the rounding of their format",
    "evaluation": "Evaluation drops nothing, and training mode returns after it",
    "state": "What is saved can be restored",
    "data": "Reading changes no sample, and workers draw different random numbers",
}
"""The title of each relation, in the order of the report; the same as in docs/audit.md."""

OWN, TWIN, EAGER, KEPT, FLOOR = "own", "twin", "eager", "kept", "floor"
"""Names of the copies of a script: watched; left alone and then probed; without its compiler; without
recomputation; with disturbed weights."""
OF_CALLS = ("samples", "later", "shift", "padding", "documents", "inputs", "precision")
"""Relations that are tested by repeating calls of the model."""
NO_TIME = "no time was left"  # why a relation is untested


@dataclass(frozen=True)
class Finding:
    """A place where a relation does not hold."""

    relation: str
    where: str  # the tensor, module or line of the script
    cause: str
    remedy: str
    measured: float | None = None
    allowed: float | None = None
    sure: bool = True
    """False if a script may do this on purpose: then it is worth a look, but not called wrong."""


@dataclass
class Answer:
    command: str
    status: str = "clean"  # clean, wrong, or failed if the script cannot be observed
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    relations: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each relation its ``status`` (holds, broken, look, untested) and ``how``, or why not."""
    steps: int = 0
    seconds: float = 0.0


@dataclass
class Notes:
    """All findings of one process. They travel as JSON."""

    findings: list[Finding] = field(default_factory=list)
    tested: dict[str, str] = field(default_factory=dict)  # how each tested relation was tested
    untested: dict[str, str] = field(default_factory=dict)  # why the others were not

    def found(
        self,
        relation: str,
        where: str,
        cause: str,
        remedy: str,
        measured: float | None = None,
        allowed: float | None = None,
        sure: bool = True,
    ) -> None:
        """Keep a :class:`Finding`, unless the relation already has one at this place."""
        if not any((f.relation, f.where) == (relation, where) for f in self.findings):
            found = Finding(relation, where, cause, remedy, measured, allowed, sure)
            self.findings.append(found)
        self.tested.setdefault(relation, "")

    def holds(self, relation: str, how: str) -> None:
        self.tested[relation] = how

    def cannot(self, relation: str, why: str) -> None:
        self.untested.setdefault(relation, why)

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Notes":
        return cls([Finding(**f) for f in found["findings"]], found["tested"], found["untested"])

    @classmethod
    def together(cls, several: "Iterable[Notes]") -> "Notes":
        """The notes of several processes, combined."""
        whole = cls()
        for each in several:
            for finding in each.findings:
                whole.found(**asdict(finding))
            whole.tested |= {k: v for k, v in each.tested.items() if v or k not in whole.tested}
            for relation, why in each.untested.items():
                whole.cannot(relation, why)
        return whole


def caller() -> FrameType | None:
    """Where the function of torch that is watched was called."""
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    return next((f for f in frames if "/transformer_core/" not in f.f_code.co_filename), None)


def called_by_script() -> bool:
    """Whether the user's code itself has called the function of torch that is watched."""
    frame = caller()
    return frame is not None and is_own(frame.f_code.co_filename)


def user_line() -> str:
    """The innermost line of the user's code that is running now."""
    for frame, line in walk_stack(sys._getframe(1)):
        if is_own(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{line}"
    return "the script"


def user_site() -> int:
    """A number for the expressions of the user's code that are running, outer ones included."""
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    own = ((f.f_code, f.f_lasti) for f in frames if is_own(f.f_code.co_filename))
    return hash(tuple(own))
