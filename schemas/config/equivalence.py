"""How closely a variant must train the same model as the reference, and how this is checked."""

from typing import Annotated, Any, Literal, get_args

from annotated_types import Unit
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from schemas.base import MOST_SECONDS, Name, Rate, Schema
from schemas.errors import nearest

REFERENCE = "reference"
"""Name of the run that certificates compare with: the study's model in one process, in 32-bit
floating point, with explicit attention, separate projections and an unfused optimizer."""

LOOKS = 2
"""Maximum number of looks at final losses before deciding: after some seeds, and if those are
inconclusive, after as many again."""


class Bitwise(Schema):
    """Identical numbers to the last bit: no computation changes."""

    kind: Literal["bitwise"]
    against: Name = "single"
    """Variant whose losses, gradient norms and final weights must be identical."""
    reason: str = "It changes no computation."
    """Reason for this class."""


class Tolerance(Schema):
    """The same sums in a different order: equal up to 32-bit rounding."""

    kind: Literal["tolerance"]
    loss: float = Field(default=1e-4, gt=0, le=1.0)
    """Largest relative difference of the training loss, at every step."""
    grad_norm: float = Field(default=1e-3, gt=0, le=1.0)
    """Largest relative difference of the gradient's norm, at every step."""
    weights: float = Field(default=0.05, gt=0, le=10.0)
    """Largest difference of a tensor of final weights, relative to its change during training
    (2-norms). Adam divides by the gradient's size, so rounding in an element with almost no
    gradient becomes a full-sized update: this bound is much wider than that of the loss."""
    gradient: float = Field(default=2e-3, gt=0, le=1.0)
    """Largest error of a gradient tensor relative to its norm, from the same weights and batch,
    at several steps. Rounding causes about 1e-6; a single ReLU whose input is 0 up to rounding
    and falls on the other side causes up to 1e-3."""
    update: float = Field(default=1e-3, gt=0, le=1.0)
    """Largest error in a tensor's change during a step, relative to the norm of the change, from
    the same gradients, at every step. If the change is small relative to the weights, their own
    rounding allows more."""
    reason: str = "The same sums in a different order: only rounding differs."
    """Reason for this class and these bounds."""


class Statistical(Schema):
    """Fewer bits or a lossy message: different numbers, the same course of training."""

    kind: Literal["statistical"]
    seeds: int = Field(default=3, ge=2, le=20)
    """Pairs of trainings to compare, each pair from the same weights and batches; twice as many
    if the first ones are inconclusive."""
    loss: float = Field(default=0.005, gt=0, le=1.0)
    """Margin of the smoothed final loss, relative to that of the reference. The interval of the
    mean difference over the seeds must lie within it, and be narrow enough to detect a
    difference of twice the margin with 95 % probability."""
    reason: str = "Fewer bits change every number, but must not change where training goes."
    """Reason for this class and this margin."""


class Different(Schema):
    """A different optimizer, batch or network: a different model by design, so no certificate."""

    kind: Literal["different"]
    reason: str = "It trains a different model by design: only its quality can be compared."
    """Why no certificate is possible."""


EquivalenceKind = Literal["bitwise", "tolerance", "statistical", "different"]
ClassOfEquivalence = Annotated[
    Bitwise | Tolerance | Statistical | Different, Field(discriminator="kind")
]


def _from_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in get_args(EquivalenceKind):
        remedy = nearest(value, get_args(EquivalenceKind))
        raise PydanticCustomError("unknown_class", "is not a class", {"remedy": remedy})
    return {"kind": value}


AnyEquivalence = Annotated[
    ClassOfEquivalence,
    BeforeValidator(_from_name, json_schema_input_type=EquivalenceKind | ClassOfEquivalence),
]
"""A class with its bounds, or its name alone for the default bounds."""


class Certification(Schema):
    """The short trainings that certificates compare.

    They use the study's model, data and batches without dropout, and a constant learning rate:
    during a long warm-up the weights would hardly move, and any two variants would look alike.
    """

    steps: Annotated[int, Unit("steps")] = Field(default=8, ge=3, le=100_000)
    """Optimizer steps of each training."""
    learning_rate: Rate = 1e-3
    """Learning rate of every step, unless a variant changes the schedule itself."""
    budget: Annotated[float, Unit("seconds")] = Field(default=60.0, ge=0, le=MOST_SECONDS)
    """Time of a short run in seconds after which no further seed starts if the first ones are
    inconclusive; the certificate is then inconclusive."""
