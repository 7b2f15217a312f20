"""What was done to the project on purpose, and what it said: results/faults."""

from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema, Seed
from schemas.results.common import Elapsed

Cases = Annotated[int, Field(ge=0, le=1_000_000_000), Unit("cases")]
Verdict = Literal["refused", "same", "silent", "traceback", "unclear", "hung"]
"""refused: said clearly, with file, field, value and remedy, or a status with its reason. same:
what comes out is right. The others are faults of the project: another result without a word
(silent), an exception nobody caught (traceback), an error that does not say what to do (unclear),
no end (hung)."""
FAULTS: tuple[Verdict, ...] = ("silent", "traceback", "unclear", "hung")


class FaultCounts(Schema):
    """Cases of one kind, by how they ended."""

    kind: str
    """What was done."""
    refused: Cases = 0
    """Refused clearly."""
    same: Cases = 0
    """No different result."""
    silent: Cases = 0
    """Another result, and nothing said."""
    traceback: Cases = 0
    """An exception nobody caught."""
    unclear: Cases = 0
    """An error without file, field, value or remedy."""
    hung: Cases = 0
    """Not done in time."""


class FaultCase(Schema):
    """One case that ended as none may."""

    kind: str
    """What was done."""
    number: Cases
    """Its number: with the seed, it makes the case again."""
    verdict: Verdict
    """How it ended."""
    said: str
    """What was said, shortened."""


class FaultRecord(Schema):
    """All cases of one harness."""

    harness: str
    """Its name: the name of the file."""
    seed: Seed
    """Seed that the cases come from."""
    seconds: Elapsed
    """How long it took."""
    counts: list[FaultCounts]
    """By what was done."""
    failures: list[FaultCase]
    """Those that ended as none may, at most a hundred."""


class FaultReport(Schema):
    """results/faults/report.json: all harnesses that ran."""

    records: list[FaultRecord]
    """One for each harness."""
    cases: Cases
    """Cases of all of them."""
    refused: Cases
    """Of them refused clearly."""
    same: Cases
    """Of them without a different result."""
    faults: Cases
    """Of them silent, with a traceback, unclear or hung. It must be 0."""
