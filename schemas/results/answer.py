"""The answer of a study, its claims, and the same of an earlier study."""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.results.certificates import CertificateStatus
from schemas.results.common import Amount, Bytes, Elapsed, Interval, Measured, Score, Status
from schemas.results.comparisons import Unsettled, Verdict

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


class Origin(Schema):
    """Where one of the two sets of results comes from."""

    folder: str
    """The folder that was read."""
    study: str
    """Name of the study."""
    commit: str | None
    """Git commit of its runs; null if they have several, or none."""
    device: str
    """The GPUs, or the CPU if there are none."""
    packages: dict[str, str]
    """Versions of the packages that affect results."""
    recommended: list[str] | None = None
    """Parts of the recommended combination, empty for the baseline; null if no search was run."""
    speedup: Interval | None = None
    """Its throughput over that of the baseline."""


class Change(Schema):
    """One quantity of a variant, here and there."""

    variant: str
    """Name of the variant."""
    quantity: Literal["speedup", "throughput", "peak_memory", "traffic"]
    """Ratio of its throughput to that of the baseline, measured side by side; the throughput
    itself, which varies with the machine; its peak memory; bytes sent per step."""
    here: Interval | None
    """The value measured here."""
    there: Interval | None
    """The value measured there."""
    ratio: Interval | None
    """Here over there; null if either is missing."""
    verdict: Verdict | None
    """Verdict on the ratio; null if there is none."""
    reason: str = ""
    """Reason for a missing or UNDECIDED verdict."""


class Lost(Schema):
    """A certificate or status that has changed."""

    variant: str
    """Name of the variant."""
    here: str
    """Status here."""
    there: str
    """Status there."""


class Against(Schema):
    """results/against.json: these results against others."""

    here: Origin
    """These results."""
    there: Origin
    """The results compared with."""
    same_device: bool
    """Whether both used the same kind of device: only then is a change in throughput a
    regression."""
    throughput_from: Literal["turns", "runs"]
    """Source of the throughputs: the comparisons, in which variants took turns with the
    baseline, over the range of its sessions; or each variant's own run, if one of the folders
    lacks the comparisons."""
    changes: list[Change]
    """Every quantity of the variants present in both."""
    other_specs: list[str]
    """Variants left out because their run specs differ, so that they do not measure the same
    thing."""
    only_here: list[str]
    """Variants only in these results."""
    only_there: list[str]
    """Variants only in the other results."""
    statuses: list[Lost]
    """Runs whose status changed."""
    certificates: list[Lost]
    """Certificates whose status changed."""
    claims: list[Lost]
    """Claims whose verdict changed, with their ids in ``variant``."""
