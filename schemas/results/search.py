"""The best combination of techniques found on this machine: results/search.json."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema
from schemas.config.run_spec import RunSpec
from schemas.results.common import Elapsed, Interval, Many, Measured
from schemas.results.comparisons import Effect, Session
from schemas.results.equivalence import Certificate, CertificateStatus
from schemas.results.profiles import Breakdown
from schemas.results.runs import Provenance

BASELINE = "baseline"
BEST = "best"
"""Sides of the final comparison; the others are the stages between them."""


class Contender(Schema):
    """A combination that was measured."""

    parts: list[str]
    """Variants whose changes it takes."""
    predicted: Measured
    """Ratio of its throughput to that of the baseline if the effects of its parts multiplied."""
    rounds: list[Measured]
    """That ratio as each session of the search measured it."""
    status: str
    """ok, or how its processes ended in the session that it did not survive."""
    reason: str | None
    """Why it is not ok."""
    certificate: CertificateStatus | None
    """Whether it trains the same model; null where that was not asked."""


class Stage(Schema):
    """A combination of the final comparison, beside the baseline."""

    parts: list[str]
    """Variants whose changes it takes."""
    change: str
    """The variant that was added to the stage before, or taken out of the best combination."""
    effect: Effect
    """Its throughput against the baseline."""
    uncertified: list[str] = Field(default_factory=list)
    """Operators that took part in it and that no certificate of the study names, nor that of the
    best combination: such a ratio is a step of the way, and no speed-up that counts."""


class SearchResult(Schema):
    """results/search.json: what was tried, and what is recommended."""

    status: Literal["found", "baseline", "not_searched"]
    """A combination was found, nothing beats the baseline, or nothing was searched."""
    reason: str
    """Why, in a sentence."""
    baseline: str
    """The baseline of the study."""
    eligible: list[str]
    """Variants whose certificates allow them to be combined."""
    considered: Many
    """Combinations of them of which no two parts set a field differently."""
    contenders: list[Contender]
    """Those that were measured, the best first."""
    parts: list[str]
    """Parts of the recommended combination; none for the baseline."""
    spec: RunSpec
    """Its run spec, as in results/recommended.yaml."""
    certificate: Certificate | None
    """Its certificate; null where nothing but the baseline is recommended."""
    waterfall: list[Stage]
    """From the baseline to the combination, one technique after the other."""
    left_out: list[Stage]
    """The combination without each of its parts."""
    beyond: list[Stage] = Field(default_factory=list)
    """Further techniques, one after the other, with which it was not faster."""
    sessions: list[Session]
    """Sessions of the final comparison, in which all stages took turns."""
    regret: Interval | None = None
    """How many times as fast any other combination could still be, by what each technique added or
    left out showed beside the recommended one; null where nothing but the baseline is recommended."""
    profile: Breakdown | None = None
    """What the devices do in a few steps of it; null where nothing but the baseline is recommended
    or its profile failed."""
    seconds: Elapsed
    """Time of the whole search."""
    provenance: Provenance
    """Where this comes from."""
