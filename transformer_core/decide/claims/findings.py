"""What tests of claims are judged by, and what a judgement says."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from schemas.results import FamilyCurve, Interval, Outcome, Verdict
from transformer_core.decide.study_results import StudyResults

SIGNS: dict[Verdict, int] = {"FASTER": 1, "MORE": 1, "SAME": 0, "SLOWER": -1, "LESS": -1}
"""Which way verdicts point; those that decide nothing point nowhere."""


@dataclass(frozen=True)
class Findings:
    """All that tests are judged by."""

    results: StudyResults
    curves: Mapping[str, FamilyCurve]
    folder: Path
    """The results."""
    margin: float
    """Ratios from 1 / (1 + margin) to 1 + margin are the same."""


class Judgement(NamedTuple):
    """Outcome of a test, why, and the number that decides."""

    outcome: Outcome
    reason: str
    number: Interval | None = None
