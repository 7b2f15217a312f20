"""Time to quality: how long the baseline and what is recommended take to translate well."""

from typing import Annotated

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema, Seconds, Steps
from schemas.config.training import AnySchedule


class Quality(Schema):
    """A training of the baseline and one of what is recommended, in turns, until both translate as
    well as asked: results/quality.json.

    Not a part of the run spec: it changes no other training.
    """

    bleu: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """BLEU on the validation split, 0 to 100, at which a training has arrived."""
    steps: Steps = 2_000
    """Steps of the trainings, if they do not arrive before."""
    schedule: AnySchedule | None = None
    """How the learning rate changes during so many steps; null for the schedule of the study."""
    every: Steps = 100
    """Steps of a turn, and between two looks at how well a training translates."""
    max_pairs: Annotated[int, Field(ge=10, le=100_000), Unit("pairs")] = 50
    """Pairs of the validation split that are translated at a look, greedily."""
    budget: Seconds = 300.0
    """Seconds for both trainings and all looks. A turn that has begun ends."""
