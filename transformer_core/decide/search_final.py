"""The final comparison of a search, measured afresh, and certificates of its recommendations."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from schemas.config.measurement import Different
from schemas.config.run_spec import RunSpec
from schemas.results import Breakdown, Certificate, Comparison, Effect, Session, Trajectory
from schemas.results.search import BASELINE, BEST, Stage
from transformer_core.certify.bounds import Weights, read_tensors
from transformer_core.certify.judge import certify
from transformer_core.certify.kernels import sessions_otherwise, uncertified
from transformer_core.certify.short_run import LateSteps, ShortRun
from transformer_core.common.files import write_text
from transformer_core.common.progress import log as progress_log
from transformer_core.common.records import read_record
from transformer_core.decide.search_moves import NAME, Parts, stages
from transformer_core.decide.search_trials import Bench, Trial
from transformer_core.decide.verdicts import session_effects
from transformer_core.machine.provenance import package_versions
from transformer_core.observe.breakdown import BreakdownJob
from transformer_core.observe.profile_job import ProfileJob
from transformer_core.run.job import Job
from transformer_core.study.certification import short_spec
from transformer_core.study.resolve import combine, equivalence_of, resolve
from transformer_core.study.variants import lineage

MOST_CERTIFIED = 3
"""Maximum number of combinations certified until one holds."""


@dataclass(frozen=True)
class FinalComparison:
    """New sessions of a combination, the steps to it, it without each part, and the fastest
    certified variants of the study."""

    sessions: list[Session]
    sides: Mapping[str, Trial]
    """The trials that took turns, by side name."""
    effects: Mapping[str, Effect]
    """Effects by side name."""
    steps: Mapping[str, Parts]
    without: Mapping[str, Parts]
    certificates: Sequence[Certificate]

    def side(self, trial: Trial) -> str:
        """Name of the side for ``trial``."""
        return next(side for side, other in self.sides.items() if other.key == trial.key)

    def of(self, trial: Trial) -> Effect:
        """The effect of ``trial`` against the baseline."""
        return self.effects[self.side(trial)]

    def fastest(self, bench: Bench, best: Trial) -> Trial:
        """The trial with the highest ratio among those that train the same model, which ``best``
        does."""

        def ratio(side: str) -> float:
            found = self.effects[side].ratio
            return found.median if found else 0.0

        ordered = sorted(self.sides, key=ratio, reverse=True)
        faster = ordered[: ordered.index(self.side(best))][:MOST_CERTIFIED]
        alike = (self.sides[side] for side in faster)
        return next((trial for trial in alike if holds(bench, trial)), best)

    def shown_for(self, winner: Trial) -> dict[str, Any]:
        """The stages shown in a result that recommends ``winner``: those leading to it, those
        beyond it, and it without its parts."""
        steps = self._stages(self.steps)
        way = [stage for stage in steps if set(stage.parts) <= winner.parts]
        if not way or set(way[-1].parts) != winner.parts:
            way.append(self._stage(" + ".join(sorted(winner.parts)), self.side(winner)))
        return {
            "waterfall": way,
            "beyond": [stage for stage in steps if not set(stage.parts) <= winner.parts],
            "left_out": [s for s in self._stages(self.without) if set(s.parts) < winner.parts],
            "sessions": self.sessions,
        }

    def _stages(self, chosen: Mapping[str, Parts]) -> list[Stage]:
        names = {trial.parts: side for side, trial in [*self.sides.items()][::-1]}
        found = ((part, names.get(some)) for part, some in chosen.items())
        return [self._stage(part, side) for part, side in found if side]

    def _stage(self, change: str, side: str) -> Stage:
        return Stage(
            parts=sorted(self.sides[side].parts),
            change=change,
            effect=self.effects[side],
            uncertified=uncertified(self.sessions, side, self.certificates),
        )


def compare_stages(bench: Bench, best: Trial, comparisons: Sequence[Comparison]) -> FinalComparison:
    """Compare ``best``, the fastest certified variants of ``comparisons``, and as many stages as
    may run at once with the baseline, so that no row of the report is faster than the
    recommendation."""
    study = bench.study
    steps, without = stages(study, bench.variants, best.parts, bench.effects)
    rows = _rows(bench, comparisons)[: max(1, bench.room // 3)]
    sides, keys = {BEST: best}, {best.key}
    for trial in (*rows, *(bench.trial(p) for p in (*steps.values(), *without.values()) if p)):
        if trial.key not in keys and len(sides) < bench.room:
            keys.add(trial.key)
            sides[f"stage_{len(sides)}"] = trial
    sessions = _sessions(bench, {side: trial.spec for side, trial in sides.items()})
    for side, trial in sides.items():
        trial.turns += [(session, side) for session in sessions]
    found = session_effects(sessions, BASELINE, list(sides), study.comparison)
    known = [*bench.certificates.values(), *filter(None, [best.certificate])]
    return FinalComparison(sessions, sides, found, steps, without, known)


def _rows(bench: Bench, comparisons: Sequence[Comparison]) -> list[Trial]:
    """The certified variants of a study compared with its baseline, fastest first, including
    bundles."""
    study, variants = bench.study, bench.variants
    counted = [c for c in comparisons if c.reference == study.baseline and c.counts and c.speedup]
    counted.sort(key=lambda c: -c.speedup.median if c.speedup else 0.0)
    found = []
    for comparison in counted:
        spec = resolve(study, comparison.variant, variants).model_copy(update={"variant": NAME})
        line = lineage(comparison.variant, variants)
        after = line[line.index(study.baseline) + 1 :] if study.baseline in line else []
        parts = frozenset(after or [comparison.variant])
        own = combine(study, variants, sorted(parts), NAME)
        if own != spec:
            parts = frozenset([comparison.variant])
        trial = next((t for t in bench.trials.values() if t.key == spec.digest()), None)
        if trial is None:
            ratio = comparison.speedup.median if comparison.speedup else 1.0
            trial = Trial(parts, spec, ratio, certificate=bench.certificates[comparison.variant])
        found.append(trial)
    return found


def _sessions(bench: Bench, specs: Mapping[str, RunSpec]) -> list[Session]:
    """Sessions of all stages and the baseline, at least as many as a comparison needs."""
    comparing, done = bench.study.comparison, list[Session]()
    with bench.coordinator() as coordinator:
        sessions = bench.sessions(specs, comparing, coordinator, "final")
        while len(done) < comparing.sessions_least or (
            len(done) < comparing.sessions_most
            and bench.left() > fmean(session.seconds for session in done)
        ):
            done.append(
                sessions.run(len(done) + 1, lambda rounds, _: len(rounds) >= comparing.pairs)
            )
    return done


def certified(bench: Bench, trials: Sequence[Trial]) -> Trial | None:
    """The first trial that beats the baseline and trains the same model; None if none does."""
    better = [trial for trial in trials if trial.rounds and fmean(trial.rounds) > 1]
    alike = (trial for trial in better[:MOST_CERTIFIED] if holds(bench, trial))
    return next(alike, None)


def holds(bench: Bench, trial: Trial) -> bool:
    """Whether a combination trains the same model, as timed; its certificate is stored with it."""
    held = trial.certificate or _certificate(bench, trial)
    trial.certificate = _of_its_turns(trial, held)
    return trial.certificate.status == "equivalent"


def _of_its_turns(trial: Trial, certificate: Certificate) -> Certificate:
    """The certificate, inconclusive if the trial's winning turns were computed differently."""
    packages = package_versions()
    otherwise = [
        clause
        for session, side in trial.turns
        for clause in sessions_otherwise([session], side, packages, certificate)
    ]
    if certificate.status != "equivalent" or not otherwise:
        return certificate
    otherwise = list(dict.fromkeys(otherwise))
    reason = f"it was timed differently than certified ({'; '.join(otherwise)})"
    return certificate.model_copy(
        update={"status": "inconclusive", "reason": reason, "timed_otherwise": otherwise}
    )


def timed_otherwise(
    bench: Bench, sessions: Sequence[Session], side: str, certificate: Certificate | None
) -> str | None:
    """Why a ratio of ``side`` to the baseline does not count: the timed side is not the
    certified one. None if it counts."""
    packages, found = package_versions(), list[str]()
    both = {BASELINE: bench.certificates[bench.study.baseline], side: certificate}
    for name, held in both.items():
        if held and (clauses := sessions_otherwise(sessions, name, packages, held)):
            found.append(f"{name} was timed differently than certified ({'; '.join(clauses)})")
    return "; ".join(found) or None


def _certificate(bench: Bench, trial: Trial) -> Certificate:
    """The certificate of a combination, from its own short run."""
    equivalence = equivalence_of(bench.variants, sorted(trial.parts))
    assert not isinstance(equivalence, Different), "only certified variants are combined"
    folder = bench.folder / "certificate" / "+".join(sorted(trial.parts))
    spec = short_spec(bench.study, trial.spec).model_copy(update={"variant": NAME})
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    asked = ShortRun(
        spec=folder / "spec.json",
        seeds=getattr(equivalence, "seeds", 1),
        dropout=bench.study.model.dropout,
        late=LateSteps(schedule=trial.spec.training.schedule, steps=trial.spec.training.steps),
        data=bench.data,
        output=folder,
    )
    subprocess.run(command_of(asked), check=True)
    return certify(
        equivalence,
        read_record(folder / "trajectory.json", Trajectory),
        read_record(bench.reference / "trajectory.json", Trajectory),
        Weights(
            run=read_tensors(folder / "final.safetensors"),
            reference=read_tensors(bench.reference / "final.safetensors"),
            initial=read_tensors(bench.reference / "initial.safetensors"),
        ),
    )


def command_of(job: Job) -> list[str]:
    """The command that runs a job in its own processes."""
    order = json.dumps({"kind": job.kind, **job.model_dump(mode="json")})
    return [sys.executable, "-m", "transformer_core.run.job", "--order", order]


def profile_of(bench: Bench, spec: RunSpec) -> Breakdown | None:
    """The profile of ``spec``, created like those of the variants; None if one of its jobs
    fails, which does not affect the search's result."""
    folder = bench.folder / "profile"
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    asked = ProfileJob(
        spec=folder / "spec.json",
        data=bench.data,
        profiling=bench.study.profiling,
        output=folder,
    )
    reading = BreakdownJob(
        capture=folder / "capture.json",
        events=folder / "events.parquet",
        output=folder / "breakdown.json",
    )
    for job in (asked, reading):
        ended = subprocess.run(command_of(job), check=False, capture_output=True, text=True)
        if ended.returncode:
            progress_log.warning("search: the winner has no profile: %s", ended.stderr[-500:])
            return None
    return read_record(folder / "breakdown.json", Breakdown)
