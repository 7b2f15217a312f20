"""What the sides of a race for quality are asked between their turns, without torch."""

from dataclasses import dataclass

from schemas.results import Translation


@dataclass(frozen=True)
class Look:
    """To say how well the training translates now: the first ``pairs`` of the validation split,
    greedily, ``samples`` of them shown."""

    pairs: int
    samples: int


@dataclass(frozen=True)
class Seen:
    """What a rank says of it."""

    loss: float
    bleu: float
    samples: list[Translation]
