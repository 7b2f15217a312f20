"""Time to quality: how long the baseline and the recommendation take to translate well."""

from typing import Annotated

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema, Seconds, Steps
from schemas.config.training import AnySchedule


class Quality(Schema):
    """Trains the baseline and the recommendation, in turns, until both reach the requested quality:
    results/quality.json.

    Not part of the run spec: it does not affect other trainings.
    """

    bleu: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """Target BLEU on the validation split, 0 to 100."""
    steps: Steps = 2_000
    """Maximum steps of each training."""
    schedule: AnySchedule | None = None
    """Learning rate schedule over these steps; null for the study's schedule."""
    every: Steps = 100
    """Steps per turn, and between two evaluations of translation quality."""
    max_pairs: Annotated[int, Field(ge=10, le=100_000), Unit("pairs")] = 50
    """Validation pairs translated per evaluation, greedily."""
    also: list[str] = Field(default_factory=list)
    """Variants of the study that train too: of those that train another model by design, this time
    alone is a judgement."""
    budget: Seconds = 300.0
    """Seconds for all trainings and all evaluations. A turn that has started is finished."""
