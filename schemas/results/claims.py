"""The study's verdicts on claims and its family curves: claims.json and families.json."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema
from schemas.results.common import Amount, Interval, Measured
from schemas.results.comparisons import Verdict
from schemas.results.equivalence import CertificateStatus

ClaimVerdict = Literal["REPRODUCED", "PARTLY", "REFUTED", "UNDECIDED", "NOT_TESTABLE"]
Outcome = Literal["holds", "size_differs", "contradicted", "undecided", "not_testable"]


class Evidence(Schema):
    """Result of one test of a claim."""

    kind: Literal["comparison", "certificate", "measurement", "ratio", "trend"]
    """Kind of test."""
    what: str
    """The quantity tested, in a few words."""
    expected: str
    """The claim's expectation, in words."""
    outcome: Outcome
    """Whether the expectation holds; size_differs: the direction does, the size does not."""
    reason: str
    """Reason for the outcome, in a sentence."""
    number: Interval | None
    """The deciding number; an exact one has an interval of zero width. Null if there is none."""
    variants: list[str]
    """Variants that it comes from."""
    files: list[str]
    """Results that it comes from, as targets."""


class ClaimResult(Schema):
    """The study's result for one claim."""

    claim: str
    """Id of the claim."""
    statement: str
    """The claim, in a sentence."""
    source: str
    """Who makes the claim, and where."""
    verdict: ClaimVerdict
    """REPRODUCED if every possible test holds; PARTLY if the direction holds in all of them but
    a size does not; REFUTED if any contradicts; otherwise UNDECIDED; NOT_TESTABLE if no test was
    possible."""
    reason: str
    """Reason for the verdict, in a sentence or two."""
    evidence: list[Evidence]
    """Results of the tests, in order."""
    command: str
    """The single command that reproduces this verdict."""


class FamilyPoint(Schema):
    """One variant of a family, relative to its reference."""

    value: Measured
    """The number that differs between members."""
    variant: str
    """The variant."""
    reference: str
    """The variant that it is compared with."""
    throughput: Interval | None
    """Ratio of throughputs, variant over reference; 1 for the reference itself; null if not
    measured."""
    peak_memory: Interval | None
    """Ratio of peak memory; null if not measured."""
    traffic: Interval | None
    """Ratio of bytes sent per step; null if not measured."""
    all_reduces: Amount | None
    """All-reduces per optimizer step; null without DistributedDataParallel."""
    verdict: Verdict | None
    """Verdict on the throughput against the reference; null for the reference itself."""
    certificate: CertificateStatus
    """Whether the variant trains the same model."""
    counts: bool
    """Whether the point counts for the knee and trends: it was measured in more than one
    session, and trains the correct model."""
    reason: str = Field(default="")
    """Why a throughput is missing or does not count."""


class FamilyCurve(Schema):
    """One family over its values: an entry of results/families.json."""

    family: str
    """Name of the family."""
    title: str
    """Name of the values."""
    unit: str
    """Unit of the values; empty for a count."""
    summary: str
    """The question that the family answers."""
    scale: Literal["log", "linear"]
    """Scale of the values."""
    points: list[FamilyPoint]
    """The members that the study runs, smallest value first; empty if there are fewer than two."""
    best: Measured | None
    """Value with the highest throughput ratio; null if none was measured."""
    knee: Measured | None
    """Smallest value whose throughput is not shown to be below the best; null if no value is
    shown to be below it, so that there is no choice to make."""
    note: str
    """Summary of the curve, or why there is none, in a sentence."""
