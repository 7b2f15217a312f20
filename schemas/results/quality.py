"""Time to quality: results/quality.json."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Elapsed, Few, Loss, Many, Measured, Score, Status
from schemas.results.runs import Provenance, Translation


class QualityLook(Schema):
    """Translation quality of a training after a number of steps."""

    step: Many
    """Steps completed."""
    seconds: Elapsed
    """Time of these steps, excluding quality evaluations."""
    loss: Loss
    """Mean cross-entropy of the validation split in nats per target token."""
    bleu: Score
    """BLEU of the first pairs of the validation split, translated greedily."""


class QualitySide(Schema):
    """One of the trainings."""

    name: str
    """``baseline``, ``best`` for the recommendation, or a variant that the study asks for."""
    parts: list[str]
    """Variants whose changes it includes."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok."""
    looks: list[QualityLook]
    """The evaluations, in order."""
    arrived: QualityLook | None
    """The first evaluation with the requested BLEU; null if there is none."""
    time_ratio: Measured | None = None
    """Training time until it arrived over that of the baseline; null unless both did."""
    samples: list[Translation]
    """Some translations of the last evaluation."""


class QualityResult(Schema):
    """results/quality.json: how long trainings take to reach the requested translation
    quality."""

    status: Literal["arrived", "not_arrived", "failed", "not_run"]
    """All arrived; not all, within the steps and time; one failed; nothing is recommended."""
    reason: str
    """The status in a sentence."""
    bleu: Score
    """The requested BLEU."""
    pairs: Few
    """Pairs translated at each evaluation."""
    sides: list[QualitySide]
    """Baseline, recommendation if there is one, other variants; empty if nothing was run."""
    time_ratio: Measured | None
    """Training time until the recommendation arrived over that of the baseline; null unless both
    did."""
    seconds: Elapsed
    """Total time."""
    provenance: dict[str, Provenance]
    """Where this record comes from, by side."""
