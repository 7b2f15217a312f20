"""Time to quality: results/quality.json."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Elapsed, Few, Loss, Many, Measured, Score, Status
from schemas.results.runs import Provenance, Translation


class QualityLook(Schema):
    """How well a training translates after so many steps."""

    step: Many
    """Steps done."""
    seconds: Elapsed
    """Time of these steps; looks at the quality do not count."""
    loss: Loss
    """Mean cross-entropy of the validation split in nats per target token."""
    bleu: Score
    """BLEU of the first pairs of the validation split, translated greedily."""


class QualitySide(Schema):
    """One of the two trainings."""

    name: str
    """``baseline``, or ``best`` for what is recommended."""
    parts: list[str]
    """Variants whose changes it takes."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok."""
    looks: list[QualityLook]
    """What was seen of it, one look after the other."""
    arrived: QualityLook | None
    """The first look with the BLEU that was asked for; null if there is none."""
    samples: list[Translation]
    """Some translations of the last look."""


class QualityResult(Schema):
    """results/quality.json: how long two trainings take until they translate as well as asked."""

    status: Literal["arrived", "not_arrived", "failed", "not_run"]
    """Both arrived; not both, within the steps and the time; one failed; nothing is recommended."""
    reason: str
    """That in a sentence."""
    bleu: Score
    """BLEU that was asked for."""
    pairs: Few
    """Pairs that were translated at each look."""
    sides: list[QualitySide]
    """The baseline and what is recommended; none if nothing was run."""
    time_ratio: Measured | None
    """Training time until the recommended one arrived over that of the baseline; null unless both
    did."""
    seconds: Elapsed
    """Time of all."""
    provenance: dict[str, Provenance]
    """Where this comes from, by side."""
