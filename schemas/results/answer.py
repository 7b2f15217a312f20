"""The answer of a study, its search, its claims, and the same of an earlier study."""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.config.run_spec import RunSpec
from schemas.results.certificates import Certificate, CertificateStatus
from schemas.results.common import (
    BEST,
    Amount,
    Bytes,
    Elapsed,
    Ending,
    Interval,
    Loss,
    Many,
    Measured,
    Score,
)
from schemas.results.comparisons import FOREIGN_LIMIT, Effect, Session, Unsettled, Verdict
from schemas.results.profiles import Breakdown
from schemas.results.runs import Provenance

ClaimVerdict = Literal["REPRODUCED", "PARTLY", "REFUTED", "UNDECIDED", "NOT_TESTABLE"]
Outcome = Literal["holds", "size_differs", "contradicted", "undecided", "not_testable"]


class Evidence(Schema):
    """Result of one test of a claim."""

    kind: Literal["comparison", "certificate", "measurement", "ratio", "trend"]  # kind of test
    what: str  # the quantity tested, in a few words
    expected: str  # the claim's expectation, in words
    outcome: Outcome  # size_differs: the direction agrees, the size does not
    reason: str  # reason for the outcome, in a sentence
    number: Interval | None  # the deciding number, of zero width if exact; null if none
    variants: list[str]  # variants that it comes from
    files: list[str]  # results that it comes from, as targets


class ClaimResult(Schema):
    """The study's result for one claim."""

    claim: str  # id of the claim
    statement: str  # the claim, in a sentence
    source: str  # who makes the claim, and where
    verdict: ClaimVerdict  # PARTLY: the direction holds in every test, but a size does not
    reason: str  # reason for the verdict, in a sentence or two
    evidence: list[Evidence]  # results of the tests, in order
    command: str  # the single command that reproduces this verdict


class FamilyPoint(Schema):
    """One variant of a family, relative to its reference."""

    value: Measured  # the number that differs between members
    variant: str
    reference: str  # the variant that it is compared with
    throughput: Interval | None  # variant over reference; null if not measured
    peak_memory: Interval | None  # ratio of peak memory; null if not measured
    traffic: Interval | None  # ratio of bytes sent per step; null if not measured
    all_reduces: Amount | None  # per optimizer step; null without DistributedDataParallel
    verdict: Verdict | None  # against the reference; null for the reference itself
    certificate: CertificateStatus  # whether the variant trains the same model
    counts: bool  # whether it was measured in several sessions and trains the right model
    reason: str = Field(default="")  # why a throughput is missing or does not count


class FamilyCurve(Schema):
    """One family over its values: an entry of results/families.json."""

    family: str  # name of the family
    title: str  # name of the values
    unit: str  # unit of the values; empty for a count
    summary: str  # the question that the family answers
    scale: Literal["log", "linear"]  # scale of the values
    points: list[FamilyPoint]  # those that the study runs, smallest value first
    best: Measured | None  # value with the highest throughput ratio; null if none was measured
    knee: Measured | None  # smallest value not shown to be below the best; null if all are
    note: str  # summary of the curve, or why there is none, in a sentence


class AnswerStage(Schema):
    """A step on the way from the baseline to the recommendation."""

    changes: list[str]  # variants whose changes were added; several where no stage lies between
    speedup: Interval | None  # with these changes and all before them, over the baseline
    verdict: Verdict | None  # verdict on the interval


class AnswerTechnique(Schema):
    """A technique by itself: as the only change to the baseline, and as one change less, or more,
    than the recommendation."""

    technique: str  # variant whose change it is
    taken: bool  # whether the recommendation has it
    alone: Interval | None  # baseline with it, over the baseline; null if not measured
    beside: Interval | None  # recommendation without it (or with it), over itself


class AnswerVariant(Ending):
    """A variant against the baseline. If it has no ratio although its own run was ok, the reason says
    how their comparison ended."""

    variant: str
    changes: list[str] = Field(default=[])  # settings that differ from the baseline's
    recommended: bool = False  # whether it trains exactly as the recommendation does
    speedup: Interval | None  # over the baseline; null for itself and if not compared
    verdict: Verdict | None  # verdict on the interval
    counts: bool  # whether both sides have certificates: a speed-up of the same training
    certificate: CertificateStatus  # whether it trains the same model
    tokens_per_second: Interval | None  # non-padding; its ratio times the baseline's
    peak_memory_bytes: Bytes | None  # largest peak of any rank
    bleu: Score | None  # BLEU after the study's steps, 0 to 100; null for a language model
    bits_per_byte: Amount | None = None  # of a language model after the study's steps


class AnswerChange(Schema):
    """A speed-up and the changes that caused it."""

    variant: str  # name of the variant, or of the technique that the search measured individually
    reference: str  # the variant that it was measured against
    changes: list[str]  # settings that differ: one, or those of a bundle
    speedup: Interval  # throughput over that of the reference
    verdict: Verdict  # verdict on the interval


class AnswerRival(Schema):
    """A certified variant that seems faster than the recommendation but is not recommended."""

    variant: str
    speedup: Interval  # throughput over that of the baseline, from its own turns
    verdict: Verdict | None  # verdict on the interval
    direct: Interval | None  # from the same turns as the recommendation, over ``against``
    against: str | None  # denominator of ``direct``; null without a direct comparison


class AnswerClaim(Schema):
    """A claim of config/claims.yaml."""

    claim: str  # id of the claim
    statement: str  # the claim, in a sentence
    verdict: ClaimVerdict  # verdict on this machine


class AnswerTime(Schema):
    """Time spent by a study with a time limit."""

    asked_seconds: Elapsed  # time limit of the study (its field ``time``)
    taken_seconds: Elapsed  # time taken by all commands until this file was written
    unsettled: list[Unsettled]  # undecided comparisons that count, soonest to be settled first
    next_seconds: Elapsed  # a time limit that would probably settle one more of them


class AnswerTraining(Schema):
    """One training towards the requested quality."""

    name: str  # its variant; the techniques of the recommendation
    bleu: Score | None  # the best BLEU it reached; null if a loss is requested
    loss: Loss  # the lowest validation loss it reached, in nats per target token
    steps: Many | None  # until it arrived; null if it did not
    time_ratio: Measured | None  # training time until it arrived, over that of the baseline


class AnswerQuality(Schema):
    """How quickly trainings reach the quality that the study requested."""

    bleu: Score | None  # the requested BLEU; null if a loss is requested
    loss: Loss | None  # the requested validation loss in nats per target token
    time_ratio: Measured | None  # of what the search found; null unless it and the baseline arrived
    trainings: list[AnswerTraining]  # one of each, the baseline first


class AnswerCommands(Schema):
    """Commands to run."""

    reproduce: str  # measures everything again
    train: str | None
    """Trains with the recommendation, on the study's corpus; null if only the baseline could be
    recommended, and did not run to the end."""
    path: str = "results/recommended.yaml"  # path of the recommended run spec


class Answer(Schema):
    """results/summary.json: the best combination, every comparison, every claim, and open
    questions."""

    format: Literal[1] = 1  # version of the format; rises if a field changes its meaning
    study: str
    title: str  # heading of the report
    machine: str  # the GPUs, or the CPU if there are none or all variants were trained on it
    commit: str | None  # git commit of the runs; null if they have several, or none
    baseline: str  # the variant that everything is compared with
    status: Literal["found", "baseline", "not_searched"]
    """Something faster was found, nothing beats the baseline, or no search was run to its end."""
    reason: str  # reason for the status, in a sentence
    recommended: list[str]  # variants whose changes it has; empty for the baseline
    bundle: list[str] = Field(default=[])  # settings that a recommended bundle changes
    searched: bool = True
    """Whether it comes from the search: false if no search was run to its end, or if a variant of the
    study is faster than what the search found."""
    speedup: Interval | None  # its throughput over that of the baseline
    verdict: Verdict | None  # verdict on the interval
    certificate: CertificateStatus | None  # null if only the baseline is recommended
    settings: dict[str, Any]  # settings that differ from the baseline's, nested
    stages: list[AnswerStage]  # from the baseline, one technique at a time where there was time
    techniques: list[AnswerTechnique] = Field(default=[])  # those of the recommendation first
    variants: list[AnswerVariant]  # every variant, in the order of the study
    fastest_change: AnswerChange | None = None  # certified; a bundle if no single change is
    rivals: list[AnswerRival] = Field(default=[])  # higher estimates than the recommendation's
    claims: list[AnswerClaim]  # every claim, in the order of config/claims.yaml
    undecided: list[str]  # variants whose comparison with the baseline counts and is undecided
    undecided_claims: list[str]  # claims that are undecided
    quality: AnswerQuality | None  # null if not requested, or nothing was trained for it
    time: AnswerTime | None  # where the time went; null for a study without a time limit
    foreign_share: Amount = 0.0
    """Largest share of the CPUs that other processes took while sides took turns."""
    commands: AnswerCommands  # commands to run

    @property
    def busy(self) -> bool:
        """Whether other processes may have disturbed the comparisons."""
        return self.foreign_share > FOREIGN_LIMIT


class Recommendation(Schema):
    """The recommendation of an answer: the only part of results/summary.json that is read from earlier studies, too."""

    status: Literal["found", "baseline", "not_searched"]
    recommended: list[str]
    speedup: Interval | None


class Origin(Schema):
    """Where one of the two sets of results comes from."""

    folder: str  # the folder that was read
    study: str
    commit: str | None  # git commit of its runs; null if they have several, or none
    device: str  # the GPUs, or the CPU if there are none
    packages: dict[str, str]  # versions of the packages that affect results
    recommended: list[str] | None = None  # empty for the baseline; null if no search is recorded
    speedup: Interval | None = None  # its throughput over that of the baseline


class Change(Schema):
    """One quantity of a variant, here and there."""

    variant: str
    quantity: Literal["speedup", "throughput", "peak_memory"]
    """Ratio of its throughput to that of the baseline, measured side by side; the throughput
    itself, which varies with the machine; its peak memory."""
    here: Interval | None  # the value measured here
    there: Interval | None  # the value measured there
    ratio: Interval | None  # here over there; null if either is missing
    verdict: Verdict | None  # verdict on the ratio; null if there is none
    reason: str = ""  # reason for a missing or UNDECIDED verdict


class Lost(Schema):
    """A certificate or status that has changed."""

    variant: str
    here: str  # status here
    there: str  # status there


class Against(Schema):
    """results/against.json: these results against others."""

    here: Origin  # these results
    there: Origin  # the results compared with
    same_device: bool  # only then is a change in throughput a regression
    throughput_from: Literal["turns", "runs"]  # comparisons with the baseline, or own runs
    changes: list[Change]  # every quantity of the variants present in both
    other_specs: list[str]  # variants left out because their run specs differ
    only_here: list[str]  # variants only in these results
    only_there: list[str]  # variants only in the other results
    statuses: list[Lost]  # runs whose status changed
    certificates: list[Lost]  # certificates whose status changed
    claims: list[Lost]  # claims whose verdict changed, with their ids in ``variant``


class Contender(Schema):
    """A combination that was measured."""

    parts: list[str]  # variants whose own changes it includes
    bundle: bool = False  # whether its only part is a variant with all that it inherits
    predicted: Measured  # its ratio to the baseline if the effects of its parts multiplied
    rounds: list[Measured]  # the same ratio as measured in each session of the search
    status: str  # ok, or the status with which its processes ended in a session
    reason: str | None
    certificate: CertificateStatus | None  # whether it trains the same model; null if not checked


class Stage(Schema):
    """A combination in the final comparison, other than the baseline."""

    parts: list[str]  # variants whose own changes it includes
    bundle: bool = False  # whether its only part is a variant with all that it inherits
    changes: list[str]  # variants added to the previous stage, or removed from the best combination
    effect: Effect  # its throughput relative to the baseline
    uncertified: list[str] = Field(default=[])
    """Operators used in it that appear in no certificate of the study, nor in that of the best
    combination: such a ratio is an intermediate step, and not a speed-up that counts."""


class SearchResult(Schema):
    """results/search.json: what was tried, and what is recommended."""

    status: Literal["found", "baseline", "not_searched"]
    """A combination was found, nothing beats the baseline, or no search was run to its end."""
    reason: str  # reason for the status, in a sentence
    baseline: str  # the baseline of the study
    considered: Many = 0
    """Combinations of the (up to 16) most promising techniques in which no two set a field
    differently."""
    contenders: list[Contender] = Field(default=[])  # best first
    parts: list[str] = Field(default=[])  # empty for the baseline
    bundle: bool = False  # whether its only part is a variant with all that it inherits
    spec: RunSpec  # its run spec, as in results/recommended.yaml
    certificate: Certificate | None = None  # null if only the baseline is recommended
    waterfall: list[Stage] = Field(default=[])  # from the baseline, one technique at a time
    left_out: list[Stage] = Field(default=[])  # the combination without each of its parts
    beyond: list[Stage] = Field(default=[])  # techniques that did not make it faster
    rivals: list[Stage] = Field(default=[])  # certified variants that seemed as fast
    sessions: list[Session] = Field(default=[])  # in which all stages took turns
    side: str = BEST  # name of the recommended combination in these
    beside: dict[str, Interval] = Field(default={})
    """By technique: throughput of the recommended combination without it, or with it added where it
    lacks it, over the recommended one, estimated from all sessions, for techniques that some
    combinations of a session had and others had not."""
    regret: Interval | None = None
    """How many times as fast any other combination could still be, judging by the effects of
    techniques and of their pairs; null if only the baseline is recommended."""
    profile: Breakdown | None = None  # a few of its steps; null if there are none
    seconds: Elapsed  # time of the whole search
    provenance: Provenance

    @property
    def stage(self) -> Stage | None:
        """The stage of the recommended combination; null if only the baseline is recommended."""
        alike = (stage for stage in self.waterfall if set(stage.parts) == set(self.parts))
        return next(alike, None) if self.parts else None
