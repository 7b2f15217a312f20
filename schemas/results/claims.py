"""What the study says of the claims and over its families: claims.json and families.json."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema
from schemas.results.common import Amount, Interval, Measured
from schemas.results.comparisons import Verdict
from schemas.results.equivalence import CertificateStatus

ClaimVerdict = Literal["REPRODUCED", "PARTLY", "REFUTED", "UNDECIDED", "NOT_TESTABLE"]
Outcome = Literal["holds", "size_differs", "contradicted", "undecided", "not_testable"]


class Evidence(Schema):
    """What one test of a claim found."""

    kind: Literal["comparison", "certificate", "measurement", "ratio", "trend"]
    """Kind of test."""
    what: str
    """What was tested, in a few words."""
    expected: str
    """What the claim expects, in words."""
    outcome: Outcome
    """Whether the expectation holds; size_differs: the direction does, the size does not."""
    reason: str
    """Why, in a sentence."""
    number: Interval | None
    """The number that decides; an exact one has an interval without width. Null where there is
    none."""
    variants: list[str]
    """Variants that it comes from."""
    files: list[str]
    """Results that it comes from, as targets."""


class ClaimResult(Schema):
    """What this study says of one claim."""

    claim: str
    """Id of the claim."""
    statement: str
    """What is claimed."""
    source: str
    """Who says so, and where."""
    verdict: ClaimVerdict
    """REPRODUCED if every test that could be made holds; PARTLY if the direction holds in all of
    them and a size does not; REFUTED if any contradicts; else UNDECIDED; NOT_TESTABLE without a
    test that could be made."""
    reason: str
    """Why, in a sentence or two."""
    evidence: list[Evidence]
    """What the tests found, in their order."""
    command: str
    """The one command that makes this verdict again."""


class FamilyPoint(Schema):
    """One variant of a family, seen from its reference."""

    value: Measured
    """The number in which the members differ."""
    variant: str
    """The variant."""
    reference: str
    """What it is compared with."""
    throughput: Interval | None
    """Ratio of the throughputs, variant over reference; 1 of the reference itself; null where not
    measured."""
    peak_memory: Interval | None
    """Ratio of the peaks of memory; null where not measured."""
    traffic: Interval | None
    """Ratio of the bytes sent in a step; null where not measured."""
    all_reduces: Amount | None
    """All-reduces per optimizer step; null where there is no DistributedDataParallel."""
    verdict: Verdict | None
    """Verdict on the throughput against the reference; null of the reference itself."""
    certificate: CertificateStatus
    """Whether the variant trains the same model."""
    counts: bool
    """Whether the point is part of the knee and of trends: it is measured, by more than one
    session, and trains the model that it should."""
    reason: str = Field(default="")
    """Why a throughput is missing or does not count."""


class FamilyCurve(Schema):
    """One family over its values: an entry of results/families.json."""

    family: str
    """Name of the family."""
    title: str
    """What the values are."""
    unit: str
    """Unit of the values; empty for a count."""
    summary: str
    """What is asked of the family."""
    scale: Literal["log", "linear"]
    """Scale of the values."""
    points: list[FamilyPoint]
    """The members that the study runs, smallest value first; none if there are fewer than two."""
    best: Measured | None
    """Value with the largest ratio of throughputs; null where none is measured."""
    knee: Measured | None
    """Smallest value whose throughput is not shown to be below that of the best; null where no
    value is shown to be below it, so that there is nothing to choose."""
    note: str
    """What the curve says, or why there is none, in a sentence."""
