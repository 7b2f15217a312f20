"""The best combination of techniques found on this machine: results/search.json."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema
from schemas.config.run_spec import RunSpec
from schemas.results.certificates import Certificate, CertificateStatus
from schemas.results.common import Elapsed, Interval, Many, Measured
from schemas.results.comparisons import Effect, Session
from schemas.results.profiles import Breakdown
from schemas.results.runs import Provenance

BASELINE = "baseline"
BEST = "best"
"""Sides of the final comparison; the others are the stages between them."""


class Contender(Schema):
    """A combination that was measured."""

    parts: list[str]
    """Variants whose changes it includes."""
    predicted: Measured
    """Predicted ratio of its throughput to the baseline's, if the effects of its parts
    multiplied."""
    rounds: list[Measured]
    """The same ratio as measured in each session of the search."""
    status: str
    """ok, or the status with which its processes ended in the session that they did not survive."""
    reason: str | None
    """Why the status is not ok."""
    certificate: CertificateStatus | None
    """Whether it trains the same model; null if not checked."""


class Stage(Schema):
    """A combination in the final comparison, other than the baseline."""

    parts: list[str]
    """Variants whose changes it includes."""
    change: str
    """The variant added to the previous stage, or removed from the best combination."""
    effect: Effect
    """Its throughput relative to the baseline."""
    uncertified: list[str] = Field(default_factory=list)
    """Operators used in it that appear in no certificate of the study, nor in that of the best
    combination: such a ratio is an intermediate step, and not a speed-up that counts."""


class SearchResult(Schema):
    """results/search.json: what was tried, and what is recommended."""

    status: Literal["found", "baseline", "not_searched"]
    """A combination was found, nothing beats the baseline, or no search was run."""
    reason: str
    """Reason for the status, in a sentence."""
    baseline: str
    """The baseline of the study."""
    eligible: list[str]
    """Variants whose certificates allow them to be combined."""
    considered: Many = 0
    """Number of their combinations in which no two parts set a field differently."""
    contenders: list[Contender] = Field(default_factory=list)
    """The combinations measured, best first."""
    parts: list[str] = Field(default_factory=list)
    """Parts of the recommended combination; empty for the baseline."""
    spec: RunSpec
    """Its run spec, as in results/recommended.yaml."""
    certificate: Certificate | None = None
    """Its certificate; null if only the baseline is recommended."""
    waterfall: list[Stage] = Field(default_factory=list)
    """The steps from the baseline to the combination, one technique at a time."""
    left_out: list[Stage] = Field(default_factory=list)
    """The combination without each of its parts."""
    beyond: list[Stage] = Field(default_factory=list)
    """Additional techniques, one at a time, that did not make it faster."""
    sessions: list[Session] = Field(default_factory=list)
    """Sessions of the final comparison, in which all stages took turns."""
    beside: dict[str, Interval] = Field(default_factory=dict)
    """By technique: throughput of the recommended combination without it, or with it added where it
    lacks it, over the recommended one, from all sessions in which both took turns."""
    regret: Interval | None = None
    """How many times as fast any other combination could still be, judging by what each
    technique added or removed showed beside the recommended one; null if only the baseline is
    recommended."""
    profile: Breakdown | None = None
    """Device activity during a few of its steps; null if only the baseline is recommended or its
    profile failed."""
    seconds: Elapsed
    """Time of the whole search."""
    provenance: Provenance
    """Where this record comes from."""
