"""The answer of a study in short, for programs: results/summary.json.

The page and results/report.md show the same numbers, from the same reading.
"""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.results.claims import ClaimVerdict
from schemas.results.common import Amount, Bytes, Elapsed, Interval, Measured, Score, Status
from schemas.results.comparisons import Verdict
from schemas.results.equivalence import CertificateStatus
from schemas.results.refinement import Unsettled


class AnswerStage(Schema):
    """A technique on the way from the baseline to the recommendation."""

    change: str
    """Variant whose change was added."""
    speedup: Interval | None
    """Throughput with it and all before it, over that of the baseline; null if not measured."""
    verdict: Verdict | None
    """What the interval says."""


class AnswerVariant(Schema):
    """A variant against the baseline."""

    variant: str
    """Name of the variant."""
    changes: list[str] = Field(default_factory=list)
    """Settings that differ from the baseline's. Several are a bundle: the speed-up is theirs
    together, and not that of the change after which the variant is named."""
    status: Status
    """How its run ended."""
    reason: str | None
    """Why it is not ok."""
    speedup: Interval | None
    """Throughput over that of the baseline; null if not compared, and of the baseline itself."""
    verdict: Verdict | None
    """What the interval says."""
    counts: bool
    """Whether the ratio is a speed-up of the same training: both have their certificates."""
    certificate: CertificateStatus
    """Whether it trains the same model."""
    tokens_per_second: Interval | None
    """Non-padding tokens per second: the baseline's over all its sessions, with their range; of
    any other its ratio times that."""
    peak_memory_bytes: Bytes | None
    """Largest peak of any rank."""
    bleu: Score | None
    """BLEU after the steps of the study, 0 to 100; null of a language model."""
    bits_per_byte: Amount | None = None
    """Bits per byte of a language model after the steps of the study; null of a translation."""


class AnswerChange(Schema):
    """A speed-up and the changes that it is the effect of."""

    variant: str
    """Name of the variant, or of the technique that the search measured by itself."""
    reference: str
    """The variant against which it was measured."""
    changes: list[str]
    """Settings that differ: one, or those of a bundle where only bundles were measured."""
    speedup: Interval
    """Throughput over that of the reference."""
    verdict: Verdict
    """What the interval says."""


class AnswerRival(Schema):
    """A certified variant that seems faster than the recommendation, and is not recommended."""

    variant: str
    """Name of the variant."""
    speedup: Interval
    """Throughput over that of the baseline in its own turns."""
    verdict: Verdict | None
    """What the interval says."""
    direct: Interval | None
    """Measured in the same turns as the recommendation, where it was: its throughput over that of
    the baseline, or of the recommendation if ``against`` names it."""
    against: str | None
    """What ``direct`` is over; null without a direct comparison: then nothing but the missing
    verdict speaks against the variant."""


class AnswerClaim(Schema):
    """A claim of the original study."""

    claim: str
    """Its id."""
    statement: str
    """What is claimed."""
    verdict: ClaimVerdict
    """What this machine says of it."""


class AnswerTime(Schema):
    """The time of a study that has one."""

    asked_seconds: Elapsed
    """What it was given (its field ``time``)."""
    taken_seconds: Elapsed
    """What all commands took until this was written."""
    unsettled: list[Unsettled]
    """Comparisons that are undecided, the one that is settled soonest first."""
    next_seconds: Elapsed
    """A time of the study with which one of them more would probably be settled."""


class AnswerQuality(Schema):
    """How soon the recommendation translates as well as the study asked."""

    bleu: Score
    """BLEU that was asked for."""
    time_ratio: Measured
    """Training time until then over that of the baseline, of one training each."""


class AnswerCommands(Schema):
    """What to type."""

    reproduce: str
    """Makes this study again."""
    train: str
    """Trains with the recommendation, on the corpus of the study."""
    path: str = "results/recommended.yaml"
    """The run spec of the recommendation."""


class Answer(Schema):
    """results/summary.json: the best combination, every comparison, every claim, what is open."""

    format: Literal[1] = 1
    """Version of this file; a field that changes its meaning raises it."""
    study: str
    """Name of the study."""
    title: str
    """Heading of the report."""
    machine: str
    """The GPUs, or the CPU where there are none."""
    commit: str | None
    """Git commit of the runs; null if they are of several, or of none."""
    baseline: str
    """What everything is compared with."""
    status: Literal["found", "baseline", "not_searched"]
    """Something faster was found, nothing beats the baseline, or nothing was searched."""
    reason: str
    """Why, in a sentence."""
    recommended: list[str]
    """Variants whose changes the recommendation takes; none for the baseline."""
    searched: bool = True
    """Whether the search found it; otherwise it is a variant of the study that is faster than all
    that the search found."""
    speedup: Interval | None
    """Its throughput over that of the baseline."""
    verdict: Verdict | None
    """What the interval says."""
    certificate: CertificateStatus | None
    """Whether it trains the same model; null where nothing but the baseline is recommended."""
    settings: dict[str, Any]
    """Settings of its run spec that differ from the baseline's, nested as there."""
    stages: list[AnswerStage]
    """From the baseline to it, one technique after the other."""
    variants: list[AnswerVariant]
    """Every variant, in the order of the study."""
    fastest_change: AnswerChange | None = None
    """The single change with the largest effect by itself that is certified and FASTER; a bundle
    where no single change is."""
    rivals: list[AnswerRival] = Field(default_factory=list)
    """Certified variants with a higher point estimate than the recommendation's, the fastest
    first, and the direct comparison."""
    claims: list[AnswerClaim]
    """Every claim, in the order of config/claims.yaml."""
    undecided: list[str]
    """Variants whose comparison with the baseline is undecided."""
    undecided_claims: list[str]
    """Claims that are undecided."""
    quality: AnswerQuality | None
    """Time to quality; null where not asked, or where not both trainings arrived."""
    time: AnswerTime | None
    """Where the time went; null for a study without a time of its own."""
    commands: AnswerCommands
    """What to type."""
