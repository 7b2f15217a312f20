"""The fastest combination of techniques on this machine that trains the same model.

Single effects do not multiply: a technique may pay off only with another, or not at all once
another has removed the same cost. So the search measures combinations themselves, at first all
techniques at once and those that look best (:mod:`transformer_core.decide.search_moves`). It then
compares the best one whose certificate holds with the baseline in new sessions, stage by stage,
together with the fastest certified variants of the study: the sessions that selected it favour it,
so they are no evidence. The result is the fastest of these, and says how much faster any other
combination could still be.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from schemas.config.data import FixedSize, PaddedRows
from schemas.config.model import UnpaddedTokens
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Comparison, Pair
from schemas.results.answer import Contender, SearchResult
from schemas.results.common import BASELINE
from transformer_core.common.digests import write_result
from transformer_core.common.endings import count_failure, failures, reproducing_command
from transformer_core.common.folder_locks import workplace
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_as, read_record
from transformer_core.common.yaml_files import as_yaml
from transformer_core.decide.search_effects import LEAST_NOISE, UNKNOWN, Effects, Noise
from transformer_core.decide.search_final import (
    FinalComparison,
    Row,
    certified,
    compare_stages,
    has,
    profile_of,
    rows_of,
    timed_otherwise,
)
from transformer_core.decide.search_moves import (
    NAME,
    Exploration,
    beside,
    considered,
    eligible,
    error_of,
    own_effects,
    regret,
    space_of,
)
from transformer_core.decide.search_trials import Bench, Trial
from transformer_core.machine.provenance import collect
from transformer_core.measure.sessions import SessionEndedError
from transformer_core.run.supervisor import end_on_request
from transformer_core.study.resolve import combine, spec_of
from transformer_core.study.users_files import own_models

SHOWN = 2  # certificates whose reasons are given
UNMEASURED = 0.05  # deviation of a session if no effect alone is known
SEED = 20_170_612  # so that a search that starts again makes the same draws


class SearchJob(Job):
    """Finds the fastest combination of techniques that trains the same model."""

    kind = "search"

    study: Study  # with the defaults of sections that do not concern a search
    variants: dict[str, Variant]  # its variants and their ancestors
    comparisons: Path
    certificates: list[Path]  # the certificate of every variant
    reference: Path  # folder of the short run of the reference
    data: Path  # results/data/<corpus>
    output: Path  # search.json
    recommended: Path  # the run spec as YAML
    code: str = ""  # digest of the sources: sessions of different code do not count

    def run(self, log_file: Path | None) -> None:
        end_on_request()
        comparisons: list[Comparison] = read_as(self.comparisons, list[Comparison])
        read = [read_record(file, Certificate) for file in self.certificates]
        failed = failures(self.output)
        with workplace(self.output.with_suffix(""), lambda: failures(self.output) > failed):
            result = search(self, comparisons, {each.variant: each for each in read})
            write_result(self.recommended, recommended_yaml(result))
            write_result(self.output, result.model_dump_json(indent=1) + "\n")
        if result.status == "not_searched":
            log.warning("no combinations were searched: %s", result.reason)
        else:
            best = " + ".join(result.parts) or result.baseline
            log.info("recommended: %s (%s)", best, result.reason)


def search(
    job: SearchJob, comparisons: Sequence[Comparison], certificates: Mapping[str, Certificate]
) -> SearchResult:
    """Search, certify and compare; work files are in a folder beside the output. Counts a failure if something
    failed for a reason that may be temporary."""
    started, began = datetime.now(UTC), time.monotonic()
    study, variants, command = job.study, job.variants, reproducing_command(job.output)
    baseline = combine(study, variants, (), NAME)
    assert baseline is not None, "the baseline is a variant of the study"

    def ended(status: Literal["found", "baseline", "not_searched"], **more: Any) -> SearchResult:
        return SearchResult(
            status=status,
            baseline=study.baseline,
            seconds=time.monotonic() - began,
            provenance=collect(baseline, command, started),
            **{"spec": baseline} | more,
        )

    if reason := _unsearchable(study, certificates):
        return ended("not_searched", reason=reason)
    assert study.search is not None, "the study asks for a search"
    alone = own_effects(study, variants, comparisons)
    effects = {part: effect for part, (effect, _) in alone.items()}
    bench = Bench(
        *(study, variants, effects, baseline, job.data, job.output.with_suffix(""), command),
        deadline=began + study.search.budget,
        budget=study.search.budget,
        room=study.search.together - 1,
        certificates=certificates,
        reference=job.reference,
        again=partial(count_failure, job.output),
    )
    rows = rows_of(bench, comparisons)
    noise = noise_of_session(study, comparisons)
    exploration = _exploration(bench, alone, rows, noise, job.code)
    try:
        exploration.run()
        trials = [t for t in bench.trials.values() if t.parts <= {*exploration.space.parts}]
        trials.sort(key=lambda trial: -exploration.rank(trial.parts))
        compared = _compared(bench, trials, rows)
    except SessionEndedError as error:
        reason = f"the search ended early: {' '.join(str(error).split())}"
        return ended("not_searched", reason=reason)
    played = [trial.record for trial in trials if trial.rounds or trial.status != "ok"]
    tried = {"considered": considered(exploration.space), "contenders": played}
    if compared is None:
        reason = "no certified combination was faster than the baseline"
        if played and all(each.status != "ok" for each in played):
            reason = f"no combination that was tried could run: {_why((' + '.join(c.parts), c) for c in played)}"
        return ended("baseline", reason=reason, **tried)
    final, winner = compared
    shown = final.shown_for(winner) | tried
    if final.effects[final.side(winner)].verdict != "FASTER":
        reason = "the best combination of the search is not shown to be faster than the baseline"
        return ended("baseline", reason=reason, **shown)
    if otherwise := timed_otherwise(bench, final.sessions, final.side(winner), winner.certificate):
        return ended("baseline", reason=otherwise, **shown)
    return ended(
        "found",
        reason="the fastest certified combination of the search",
        parts=sorted(winner.parts),
        bundle=winner.bundle,
        spec=winner.spec,
        certificate=winner.certificate,
        profile=profile_of(bench, winner.spec),
        **_regret(exploration, final, winner),
        **shown,
    )


def _unsearchable(study: Study, certificates: Mapping[str, Certificate]) -> str:
    """Why no combination of a study can be searched; empty if some can."""
    own, others = study.baseline, [name for name in study.variants if name != study.baseline]
    if certificates[own].status != "equivalent":
        return f"the baseline has no certificate: {_why([(own, certificates[own])])}"
    if study.search is None:
        return "search is null, by the study or by stage=quick"
    if not study.search.budget:
        return "search.budget is 0"
    if not others:
        return "the study has no variant but the baseline"
    if not eligible(study, certificates):
        why = _why((name, certificates[name]) for name in others)
        return f"no variant but the baseline has a certificate: {why}"
    return ""


def _why(ended: Iterable[tuple[str, Certificate | Contender]]) -> str:
    """How the first of these ended, with their names, in a line."""
    said = [f"{name} {each.status.replace('_', ' ')}, {each.reason}" for name, each in ended]
    more = [f"and {len(said) - SHOWN} more"] if len(said) > SHOWN else []
    return " ".join("; ".join([*said[:SHOWN], *more]).split())


def _exploration(
    bench: Bench,
    alone: Mapping[str, tuple[float, float]],
    rows: Sequence[Row],
    noise: Noise,
    code: str,
) -> Exploration:
    """A search that knows the effects of techniques ``alone``, the ``rows`` of the study, and the sessions of
    an interrupted search."""
    study, variants = bench.study, bench.variants
    parts = eligible(study, bench.certificates)
    # Combinations that the study's own turns already measured.
    measured = {row.trial.parts: row for row in rows if not row.trial.bundle}
    # Some techniques occur only in bundles of the study.
    inherited = sorted({part for combination in measured for part in combination} - {*parts})
    space = space_of(study, variants, [*parts, *inherited], bench.effects)
    # That of a technique which only bundles have comes from the turns of these, learned below.
    known = {
        part: (effect, error if frozenset([part]) in measured else UNKNOWN)
        for part, (effect, error) in alone.items()
    }
    model = Effects(space.parts, known, np.random.default_rng(SEED))
    for combination, row in measured.items():
        if len(combination) > 1 and combination <= {*space.parts}:
            own = Noise(max(error_of(row.speedup), LEAST_NOISE), 0.0)
            model.learn({combination: math.log(row.speedup.median)}, own)
    bench.key = _key(study, variants, space.parts, code)
    # More sessions, each of which builds on the results of the ones before, find more in the same time.
    at_once = min(bench.room, max(2, bench.room // 2))
    found = Exploration(space, bench.measure, at_once, bench.more, model, noise)
    for session in bench.resume():
        found.learn(session)
    return found


def _compared(
    bench: Bench, trials: Sequence[Trial], rows: Sequence[Row]
) -> tuple[FinalComparison, Trial] | None:
    """The final comparison of the first of these trials that can run, and its winner."""
    while best := certified(bench, trials):
        if final := compare_stages(bench, best, rows):
            # The intervals hold for all at once, so the one chosen for its ratio keeps its own.
            return final, final.fastest(bench, best)
    return None


def _key(study: Study, variants: Mapping[str, Variant], parts: Sequence[str], code: str) -> str:
    """Identity of a search of these techniques by this ``code``: its sessions count if it resumes."""
    declared = {name: variant.canonical_json() for name, variant in variants.items()}
    own = own_models(spec_of(study, name, variants) for name in study.variants)
    text = json.dumps([study.canonical_json(), declared, sorted(parts), own, code])
    return hashlib.sha256(text.encode()).hexdigest()


def noise_of_session(study: Study, comparisons: Sequence[Comparison]) -> Noise:
    """How logarithms of ratios deviate in one session, from the study's own turns."""
    errors = [
        error_of(comparison.speedup)
        for comparison in comparisons
        if comparison.reference == study.baseline and comparison.speedup
    ]
    if not errors:
        return Noise.of_ratios(UNMEASURED)
    squares = fmean(error**2 for error in errors)
    return Noise.of_ratios(math.sqrt(study.comparison.sessions_least * squares))


def _regret(exploration: Exploration, final: FinalComparison, winner: Trial) -> dict[str, Any]:
    """How much faster than the winner anything else could still be, and each technique's effect together
    with it, if it is a sum of techniques."""
    known = {*exploration.space.parts}
    for session in final.sessions:
        exploration.learn(
            {
                trial.parts: session.ratio(Pair(side, BASELINE)).estimate
                for side, trial in final.sides.items()
                if has(session, side) and not trial.bundle and trial.parts <= known
            }
        )
    ratio = final.effects[final.side(winner)].ratio
    if ratio and (winner.bundle or not winner.parts <= known):
        return {"regret": regret(exploration, ratio)}
    return {
        "beside": beside(exploration, winner.parts),
        "regret": regret(exploration, winner.parts),
    }


def pads(spec: RunSpec) -> bool:
    """Whether much of the work of ``spec`` is padding: it batches pairs of any lengths together,
    one per row, and computes whole rows."""
    fixed = isinstance(spec.batching, FixedSize) and isinstance(spec.batching.rows, PaddedRows)
    return fixed and not isinstance(getattr(spec.model, "tokens", None), UnpaddedTokens)


def recommended_yaml(result: SearchResult) -> str:
    """The run spec as YAML, with comments on its results."""
    lines = [
        "# The run spec recommended for this machine, found by",
        f"#   {result.provenance.command}",
        f"# {' + '.join(result.parts) or result.baseline}: {result.reason}.",
    ]
    if result.stage and (ratio := result.stage.effect.ratio):
        lines.append(
            f"# Throughput {ratio.median:.3f} x that of {result.baseline}, 95 % interval "
            f"{ratio.low:.3f} to {ratio.high:.3f}."
        )
    if result.regret:
        most = result.regret
        lines.append(
            f"# Any other combination is at most {most.high:.3f} x as fast (97.5 %), probably "
            f"{most.median:.3f} x."
        )
    if result.certificate:
        lines.append(f"# Certificate: {result.certificate.status}, {result.certificate.reason}.")
    if pads(result.spec):
        lines += [
            "# Its batches are those of the study: a fixed number of pairs of any lengths, padded",
            "# to the longest. If you may change that, batching: {kind: token_budget} pads little.",
        ]
    return "\n".join(lines) + "\n" + as_yaml(result.spec.model_dump(mode="json"))
