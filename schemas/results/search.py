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
    """A combination was found, nothing beats the baseline, or no search was run."""
    reason: str  # reason for the status, in a sentence
    baseline: str  # the baseline of the study
    eligible: list[str]  # variants whose certificates allow them to be combined
    considered: Many = 0  # combinations in which no two parts set a field differently
    contenders: list[Contender] = Field(default=[])  # best first
    parts: list[str] = Field(default=[])  # empty for the baseline
    bundle: bool = False  # whether its only part is a variant with all that it inherits
    spec: RunSpec  # its run spec, as in results/recommended.yaml
    certificate: Certificate | None = None  # null if only the baseline is recommended
    waterfall: list[Stage] = Field(default=[])  # from the baseline, one technique at a time
    left_out: list[Stage] = Field(default=[])  # the combination without each of its parts
    beyond: list[Stage] = Field(default=[])  # techniques that did not make it faster
    sessions: list[Session] = Field(default=[])  # in which all stages took turns
    beside: dict[str, Interval] = Field(default={})
    """By technique: throughput of the recommended combination without it, or with it added where it
    lacks it, over the recommended one, from all sessions in which both took turns."""
    regret: Interval | None = None
    """How many times as fast any other combination could still be, judging by what each
    technique added or removed showed beside the recommended one; null if only the baseline is
    recommended."""
    profile: Breakdown | None = None  # a few of its steps; null if there are none
    seconds: Elapsed  # time of the whole search
    provenance: Provenance
