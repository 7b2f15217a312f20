"""The task of a side of a race for quality between its turns, without torch."""

from dataclasses import dataclass
from typing import Any, ClassVar

from schemas.results import Translation
from transformer_core.run.coordinator import Task


@dataclass(frozen=True)
class Seen:
    """What a rank reports."""

    loss: float
    bleu: float
    samples: list[Translation]


@dataclass(frozen=True)
class Look(Task):
    """To report how well the training translates now: the first ``pairs`` of the validation split,
    greedily, ``samples`` of them shown."""

    pairs: int
    samples: int
    answer: ClassVar[Any] = Seen
