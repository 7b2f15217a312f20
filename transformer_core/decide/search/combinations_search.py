"""A search from its beginning to its result: measure, certify, compare anew."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Comparison
from schemas.results.search import Contender, SearchResult
from transformer_core.decide.search.candidates import eligible, own_effects, shortlist
from transformer_core.decide.search.combination_certificates import (
    certified,
    holds,
    timed_otherwise,
)
from transformer_core.decide.search.final_comparison import compare_stages
from transformer_core.decide.search.halving import halve
from transformer_core.decide.search.profile_of_winner import profile_of
from transformer_core.decide.search.stepwise import improve
from transformer_core.decide.search.trials import NAME, Bench, Trial
from transformer_core.machine.provenance import collect
from transformer_core.study.combinations import combine


@dataclass
class Record:
    """What is known of a search, until it ends with a result."""

    baseline: RunSpec
    command: str
    started: datetime
    began: float
    known: dict[str, Any]

    def ended(self, status: str, reason: str, **more: object) -> SearchResult:
        """The result; what is not known is empty, and what is recommended is the baseline."""
        nothing = {"considered": 0, "contenders": [], "parts": [], "spec": self.baseline}
        nothing |= {
            "certificate": None,
            "waterfall": [],
            "left_out": [],
            "beyond": [],
            "sessions": [],
        }
        seconds = time.monotonic() - self.began
        origin = collect(self.baseline, self.command, self.started)
        return SearchResult.model_validate(
            {**nothing, **self.known, **more, "status": status, "reason": reason}
            | {"seconds": seconds, "provenance": origin}
        )


def search(
    study: Study,
    variants: Mapping[str, Variant],
    comparisons: Sequence[Comparison],
    certificates: Mapping[str, Certificate],
    reference: Path,
    data: Path,
    folder: Path,
    command: str,
) -> SearchResult:
    """Search, certify and compare; work files are below ``folder``."""
    started, began = datetime.now(UTC), time.monotonic()
    baseline = combine(study, variants, (), NAME)
    assert baseline is not None, "the baseline is a variant of the study"
    asked = study.search
    parts = eligible(study, certificates)
    known = {"baseline": study.baseline, "eligible": parts}
    record = Record(baseline, command, started, began, known)
    if asked is None or not asked.budget:
        return record.ended("not_searched", "the study gives no time for it (search.budget)")
    if certificates[study.baseline].status != "equivalent":
        reason = f"the baseline {study.baseline} has no certificate"
        return record.ended("not_searched", reason)
    if not parts:
        return record.ended("not_searched", "no variant of the study has a certificate")
    effects = own_effects(study, variants, comparisons)
    trials, record.known["considered"] = shortlist(study, variants, parts, effects)
    bench = Bench(
        study, baseline, data, folder, command, started, began + asked.budget, certificates
    )
    halve(bench, trials)
    most = own_effects(study, variants, comparisons, "high")
    improve(bench, variants, trials, effects, {part: most.get(part, 0.0) for part in parts})
    trials.sort(key=lambda trial: trial.rank, reverse=True)
    best = certified(
        bench, variants, [trial for trial in trials if trial.status == "ok"], reference
    )
    record.known["contenders"] = [_contender(trial) for trial in trials]
    if best is None:
        return record.ended("baseline", "no certified combination was faster than the baseline")
    return _compared(bench, variants, best, effects, reference, record)


def _contender(trial: Trial) -> Contender:
    """What the result says of a combination that was tried."""
    return Contender(
        parts=list(trial.parts),
        predicted=trial.predicted,
        rounds=trial.rounds,
        status=trial.status,
        reason=trial.reason,
        certificate=trial.certificate.status if trial.certificate else None,
    )


def _compared(
    bench: Bench,
    variants: Mapping[str, Variant],
    best: Trial,
    effects: Mapping[str, float],
    reference: Path,
    record: Record,
) -> SearchResult:
    """The result after the best combination and its stages were compared with the baseline.

    What is recommended is the fastest of the stages, so that the page shows no faster one: where
    the last techniques seem to cost, they are left out. The intervals hold for all stages at once,
    so that the one that was chosen for its ratio keeps its interval.
    """
    final = compare_stages(bench, variants, best, effects)
    winner = best
    if (top := final.fastest_step(bench, variants)) and holds(bench, variants, top, reference):
        winner = top
    shown = final.shown_for(winner)
    if final.of(winner).verdict != "FASTER":
        reason = "the best combination of the search is not shown to be faster than the baseline"
        return record.ended("baseline", reason, **shown)
    if otherwise := timed_otherwise(bench, final.sessions, final.side(winner), winner.certificate):
        return record.ended("baseline", otherwise, **shown)
    chosen = {
        "parts": list(winner.parts),
        "spec": winner.spec,
        "certificate": winner.certificate,
        "profile": profile_of(bench, winner.spec),
    }
    reason = "the fastest certified combination of the search"
    return record.ended("found", reason, **shown, **chosen)
