"""The answer of a study in short, for programs: results/summary.json.

The page and results/report.md show the same numbers, from the same reading.
"""

from typing import Any, Literal

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
    """A combination was found, nothing beats the baseline, or nothing was searched."""
    reason: str
    """Why, in a sentence."""
    recommended: list[str]
    """Variants whose changes the recommended combination takes; none for the baseline."""
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
