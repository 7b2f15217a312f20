"""The answer of a study in brief, for programs: results/summary.json.

The HTML report and results/report.md show the same numbers, read the same way.
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
    """Throughput with this change and all before it, over that of the baseline; null if not
    measured."""
    verdict: Verdict | None
    """Verdict on the interval."""


class AnswerTechnique(Schema):
    """A technique by itself: as one change beside the baseline, and as one change less, or more,
    beside the recommendation."""

    technique: str
    """Variant whose change it is."""
    taken: bool
    """Whether the recommendation has it."""
    alone: Interval | None
    """Throughput of the baseline with it, over that of the baseline; null if not measured."""
    beside: Interval | None
    """Throughput of the recommendation without it, or with it if it lacks it, over that of the
    recommendation; null if not measured."""


class AnswerVariant(Schema):
    """A variant against the baseline."""

    variant: str
    """Name of the variant."""
    changes: list[str] = Field(default_factory=list)
    """Settings that differ from the baseline's. If there are several, they form a bundle: the
    speed-up belongs to all of them, not just to the change that the variant is named after."""
    status: Status
    """How its run ended."""
    reason: str | None
    """Why it is not ok."""
    speedup: Interval | None
    """Throughput over that of the baseline; null for the baseline itself and if not compared."""
    verdict: Verdict | None
    """Verdict on the interval."""
    counts: bool
    """Whether the ratio is a speed-up of the same training: both sides have certificates."""
    certificate: CertificateStatus
    """Whether it trains the same model."""
    tokens_per_second: Interval | None
    """Non-padding tokens per second: for the baseline, over all its sessions with their range;
    for any other variant, its ratio times that."""
    peak_memory_bytes: Bytes | None
    """Largest peak of any rank."""
    bleu: Score | None
    """BLEU after the study's steps, 0 to 100; null for a language model."""
    bits_per_byte: Amount | None = None
    """Bits per byte of a language model after the study's steps; null for translation."""


class AnswerChange(Schema):
    """A speed-up and the changes that caused it."""

    variant: str
    """Name of the variant, or of the technique that the search measured individually."""
    reference: str
    """The variant that it was measured against."""
    changes: list[str]
    """Settings that differ: one, or those of a bundle if only bundles were measured."""
    speedup: Interval
    """Throughput over that of the reference."""
    verdict: Verdict
    """Verdict on the interval."""


class AnswerRival(Schema):
    """A certified variant that seems faster than the recommendation but is not recommended."""

    variant: str
    """Name of the variant."""
    speedup: Interval
    """Throughput over that of the baseline, from its own turns."""
    verdict: Verdict | None
    """Verdict on the interval."""
    direct: Interval | None
    """Result measured in the same turns as the recommendation, if any: its throughput over that
    of the baseline, or of the recommendation if ``against`` names it."""
    against: str | None
    """Denominator of ``direct``; null without a direct comparison, in which case only the
    missing verdict speaks against the variant."""


class AnswerClaim(Schema):
    """A claim of the original study."""

    claim: str
    """Id of the claim."""
    statement: str
    """The claim, in a sentence."""
    verdict: ClaimVerdict
    """Verdict on this machine."""


class AnswerTime(Schema):
    """Time spent by a study with a time limit."""

    asked_seconds: Elapsed
    """Time limit of the study (its field ``time``)."""
    taken_seconds: Elapsed
    """Time taken by all commands until this file was written."""
    unsettled: list[Unsettled]
    """Undecided comparisons, soonest to be settled first."""
    next_seconds: Elapsed
    """A time limit that would probably settle one more of them."""


class AnswerQuality(Schema):
    """How quickly the recommendation reaches the translation quality that the study requested."""

    bleu: Score
    """The requested BLEU."""
    time_ratio: Measured
    """Training time to reach it, over that of the baseline, from one training each."""


class AnswerCommands(Schema):
    """Commands to run."""

    reproduce: str
    """Reproduces this study."""
    train: str
    """Trains with the recommendation, on the study's corpus."""
    path: str = "results/recommended.yaml"
    """Path of the recommended run spec."""


class Answer(Schema):
    """results/summary.json: the best combination, every comparison, every claim, and open
    questions."""

    format: Literal[1] = 1
    """Version of this file format; it increases if a field changes its meaning."""
    study: str
    """Name of the study."""
    title: str
    """Heading of the report."""
    machine: str
    """The GPUs, or the CPU if there are none."""
    commit: str | None
    """Git commit of the runs; null if they have several, or none."""
    baseline: str
    """The variant that everything is compared with."""
    status: Literal["found", "baseline", "not_searched"]
    """Something faster was found, nothing beats the baseline, or no search was run."""
    reason: str
    """Reason for the status, in a sentence."""
    recommended: list[str]
    """Variants whose changes the recommendation includes; empty for the baseline."""
    searched: bool = True
    """Whether the search found it; otherwise it is a variant of the study that is faster than
    anything the search found."""
    speedup: Interval | None
    """Its throughput over that of the baseline."""
    verdict: Verdict | None
    """Verdict on the interval."""
    certificate: CertificateStatus | None
    """Whether it trains the same model; null if only the baseline is recommended."""
    settings: dict[str, Any]
    """Settings in its run spec that differ from the baseline's, nested as in the run spec."""
    stages: list[AnswerStage]
    """The steps from the baseline to the recommendation, one technique at a time."""
    techniques: list[AnswerTechnique] = Field(default_factory=list)
    """Each technique by itself, those of the recommendation first."""
    variants: list[AnswerVariant]
    """Every variant, in the order of the study."""
    fastest_change: AnswerChange | None = None
    """The single change with the largest individual effect that is certified and FASTER; a
    bundle if no single change is."""
    rivals: list[AnswerRival] = Field(default_factory=list)
    """Certified variants with a higher point estimate than the recommendation's, fastest first,
    with the direct comparison."""
    claims: list[AnswerClaim]
    """Every claim, in the order of config/claims.yaml."""
    undecided: list[str]
    """Variants whose comparison with the baseline is undecided."""
    undecided_claims: list[str]
    """Claims that are undecided."""
    quality: AnswerQuality | None
    """Time to quality; null if not requested, or unless both trainings reached it."""
    time: AnswerTime | None
    """Where the time went; null for a study without a time limit."""
    commands: AnswerCommands
    """Commands to run."""
