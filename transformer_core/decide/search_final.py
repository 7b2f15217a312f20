"""The final comparison of a search in new sessions, and certificates of its recommendations."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean
from typing import Any

from schemas.config.measurement import LOOKS, Different, Statistical
from schemas.config.run_spec import RunSpec
from schemas.errors import Refusal
from schemas.results import (
    Breakdown,
    Certificate,
    Comparison,
    Effect,
    Interval,
    Pair,
    Round,
    Session,
)
from schemas.results.answer import Stage
from schemas.results.common import BASELINE, BEST
from transformer_core.certify.judge import certify_files
from transformer_core.certify.kernels import sessions_otherwise, uncertified
from transformer_core.certify.short_run import RECORD, LateSteps, ShortRun
from transformer_core.common.endings import failures
from transformer_core.common.files import write_text
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.decide.intervals import simultaneous_ratios
from transformer_core.decide.search_moves import NAME, eligible, parts_of, stages
from transformer_core.decide.search_trials import Bench, Trial
from transformer_core.decide.verdicts import judge, timed_differently
from transformer_core.machine.provenance import package_versions
from transformer_core.measure.sessions import Enough, SessionEndedError
from transformer_core.observe.breakdown import BreakdownJob
from transformer_core.observe.profile_job import ProfileJob
from transformer_core.run.host_processes import QUICK_START
from transformer_core.run.job import Job
from transformer_core.run.statuses import AGAIN
from transformer_core.run.supervisor import how_ended
from transformer_core.study.certification import short_spec
from transformer_core.study.resolve import resolve
from transformer_core.study.variants import loosest

MOST_CERTIFIED = 3  # maximum number of combinations that get a certificate until one holds
APART = 10_000
"""More sessions than the exploration or a round of the final comparison has. The numbers of each round
begin so far after those before, because sessions of one number have the same seed and order."""


@dataclass(frozen=True)
class FinalComparison:
    """New sessions of a combination, the steps to it, it without each part, and the certified
    variants of the study that may be as fast."""

    sessions: list[Session]
    sides: Mapping[str, Trial]  # the trials that took turns, by side name
    effects: Mapping[str, Effect]  # effects by side name
    measured: Mapping[str, Effect]
    """Effects of the study's certified variants from their own turns, by the key of the trial."""
    steps: Mapping[str, Trial]
    without: Mapping[str, Trial]
    certificates: Sequence[Certificate]  # of the study's variants

    def side(self, trial: Trial) -> str:
        """Name of the side for ``trial``."""
        return next(side for side, one in self.sides.items() if one.key == trial.key)

    def fastest(self, bench: Bench, best: Trial) -> Trial:
        """The trial with the highest ratio, of those shown to be faster if there are any, among those
        that train the same model, as ``best`` is known to do."""

        def rank(side: str) -> tuple[bool, float]:
            found = self.effects[side]
            return found.verdict == "FASTER", found.ratio.median if found.ratio else 0.0

        ordered = sorted(self.sides, key=rank, reverse=True)
        faster = ordered[: ordered.index(self.side(best))]
        return first_that_holds(bench, [self.sides[side] for side in faster]) or best

    def shown_for(self, winner: Trial) -> dict[str, Any]:
        """The stages shown in a result that recommends ``winner``: those leading to it, those
        beyond it, it without its parts, and its rivals. If those beyond do not contain it, they lead
        from the baseline to another combination."""
        steps = self._stages(self.steps)
        way = [] if winner.bundle else [s for s in steps if set(s.parts) <= winner.parts]
        beyond = [stage for stage in steps if stage not in way]
        if not way or set(way[-1].parts) != winner.parts:
            way.append(self._stage(winner, sorted(winner.parts)))
        further = beyond and set(beyond[0].parts) > winner.parts
        staged = {trial.key for trial in (winner, *self.steps.values(), *self.without.values())}
        rivals = [trial for trial in self.sides.values() if trial.key not in staged]
        return {
            "waterfall": _with_changes(way, ()),
            "beyond": _with_changes(beyond, winner.parts if further else ()),
            "left_out": [s for s in self._stages(self.without) if set(s.parts) < winner.parts],
            "rivals": [self._stage(trial, sorted(trial.parts)) for trial in rivals],
            "sessions": self.sessions,
            "side": self.side(winner),
        }

    def _stages(self, chosen: Mapping[str, Trial]) -> list[Stage]:
        have = {trial.key for trial in self.sides.values()} | self.measured.keys()
        return [self._stage(trial, [part]) for part, trial in chosen.items() if trial.key in have]

    def _stage(self, trial: Trial, changes: list[str]) -> Stage:
        side = next((side for side, one in self.sides.items() if one.key == trial.key), None)
        own = filter(None, (one.certificate for one in self.sides.values()))
        known = [*self.certificates, *own]
        return Stage(
            parts=sorted(trial.parts),
            bundle=trial.bundle,
            changes=changes,
            effect=self.effects[side] if side else self.measured[trial.key],
            uncertified=uncertified(self.sessions, side, known) if side else [],
        )


def _with_changes(stages: Sequence[Stage], before: Iterable[str]) -> list[Stage]:
    """The ``stages`` after the parts ``before``, each with its new changes: several if stages in between
    were not measured."""
    starts = [before, *(stage.parts for stage in stages)]
    return [
        stage.model_copy(update={"changes": sorted({*stage.parts} - {*start})})
        for stage, start in zip(stages, starts, strict=False)
    ]


@dataclass(frozen=True)
class Row:
    """A certified variant of the study, with its effect from its turns with the baseline."""

    trial: Trial
    effect: Effect
    speedup: Interval


def compare_stages(bench: Bench, best: Trial, rows: Sequence[Row]) -> FinalComparison | None:
    """Compare ``best``, the ``rows`` that may be as fast, and as many stages as there is time for
    with the baseline; then any row that seems faster than all of these, so that the recommendation
    is no slower than any certified variant. Stages that cannot run are left out; None if ``best``
    itself cannot."""
    chosen = stages(bench.study, bench.variants, best.parts, bench.effects)
    steps, without = (
        {part: bench.trial(parts) for part, parts in some.items() if parts} for some in chosen
    )
    measured = {row.trial.key: row.effect for row in rows}
    fastest = max([best.estimate, *(row.speedup.low for row in rows)])
    rivals = [row.trial for row in rows if row.speedup.high >= fastest]
    # A stage that is a variant of the study has already been measured against the baseline.
    staged = [t for t in (*steps.values(), *without.values()) if t.key not in measured]
    waiting = [*rivals, *staged[: max(0, bench.affordable() - 1 - len(rivals))]]
    sides, sessions, numbers = {BEST: best}, list[Session](), count(1)
    for first in count(1 + APART, APART):
        # No name is given twice: sessions may hold turns of a side that was left out later.
        new = _new(waiting, sides)[: bench.room - 1]
        asked = {BEST: best} | {f"stage_{next(numbers)}": trial for trial in new}
        sessions += _sessions(bench, asked, first)
        if BEST not in asked:
            return None
        sides |= asked
        effects = _effects(bench, sessions, sides)
        fastest = max(effect.ratio.median for effect in effects.values() if effect.ratio)
        waiting += [row.trial for row in rows if row.speedup.median > fastest]
        if not _new(waiting, sides):
            break
    for side, trial in sides.items():
        trial.turns += [(session, side) for session in sessions if has(session, side)]
    known = [*bench.certificates.values()]
    return FinalComparison(sessions, sides, effects, measured, steps, without, known)


def _new(trials: Sequence[Trial], sides: Mapping[str, Trial]) -> list[Trial]:
    """Those of ``trials`` that can run and are not among ``sides``, each once."""
    have = {trial.key for trial in sides.values()}
    return [*{t.key: t for t in trials if t.status == "ok" and t.key not in have}.values()]


def has(session: Session, side: str) -> bool:
    """Whether ``side`` took turns in a session."""
    return any(each.name == side for each in session.sides)


def _effects(
    bench: Bench, sessions: Sequence[Session], sides: Mapping[str, Trial]
) -> dict[str, Effect]:
    """The effect of each side over the baseline."""
    ratios = {
        side: [s.ratio(Pair(side, BASELINE)) for s in sessions if has(s, side)] for side in sides
    }
    margin = bench.study.comparison.margin
    intervals = simultaneous_ratios([*ratios.values()])
    return {
        side: judge("throughput", interval, margin, len(ratios[side]))
        for side, interval in zip(ratios, intervals, strict=True)
    }


def rows_of(bench: Bench, comparisons: Sequence[Comparison]) -> list[Row]:
    """The certified variants of a study compared with its baseline, fastest first; a bundle that
    equals a sum of techniques is given as that sum."""
    study, variants = bench.study, bench.variants
    known = eligible(study, bench.certificates)
    found = []
    for comparison in comparisons:
        if comparison.reference != study.baseline or not (comparison.counts and comparison.speedup):
            continue
        name, speedup = comparison.variant, comparison.speedup
        parts = parts_of(study, variants, name, known)
        spec = resolve(study, name, variants).model_copy(update={"variant": NAME})
        trial = Trial(
            frozenset([name]) if parts is None else parts,
            spec,
            predicted=speedup.median,
            bundle=parts is None,
            certificate=bench.certificates[name],
        )
        if parts is not None:
            bench.trials.setdefault(parts, trial)
        found.append(Row(trial, comparison.effect("throughput"), speedup))
    return sorted(found, key=lambda row: -row.speedup.median)


def _sessions(bench: Bench, trials: dict[str, Trial], first: int) -> list[Session]:
    """Sessions of these trials and the baseline, numbered from ``first``, at least as many as a
    comparison needs. Trials that cannot run are removed; without the best, nothing needs to be
    measured."""
    comparing, place = bench.study.comparison, f"final-{[*trials][-1]}"
    done = list(bench.kept(trials, place, first).read())
    bench.deadline -= sum(session.seconds for session in done)
    while BEST in trials:
        kept = bench.kept(trials, place, first)
        try:
            with bench.sessions(trials, "final") as sessions:
                while len(done) < comparing.sessions_least or (
                    len(done) < comparing.sessions_most
                    and bench.left() > fmean(session.seconds for session in done)
                ):
                    done.append(sessions.run(first + len(done), _paying(comparing.pairs)))
                    kept.add(done[-1])
            break
        except SessionEndedError as error:
            bench.leave_out(trials, error)
    return done


def _paying(least: int) -> Enough:
    """At least ``least`` rounds, and as much time for rounds as the session took to start: with few
    sides rounds are short, and more rounds resolve more than further sessions would."""
    began = list[float]()

    def judge(rounds: Sequence[Round], seconds: float) -> bool:
        began.append(seconds)
        return len(rounds) >= least and seconds >= 2 * began[0]

    return judge


def certified(bench: Bench, trials: Sequence[Trial]) -> Trial | None:
    """The first trial that beats the baseline, can run and trains the same model; None if none
    does."""
    better = [trial for trial in trials if trial.status == "ok" and trial.estimate > 1]
    return first_that_holds(bench, better)


def first_that_holds(bench: Bench, trials: Sequence[Trial]) -> Trial | None:
    """The first trial that trains the same model, of those that have a certificate and the first few
    that need one; None if none does."""
    too_many = [trial.key for trial in trials if trial.certificate is None][MOST_CERTIFIED:]
    return next((t for t in trials if t.key not in too_many and holds(bench, t)), None)


def holds(bench: Bench, trial: Trial) -> bool:
    """Whether a combination trains the same model, as timed; its certificate is stored with it."""
    held = trial.certificate or _certificate(bench, trial)
    trial.certificate = _of_its_turns(trial, held)
    return trial.certificate.status == "equivalent"


def _of_its_turns(trial: Trial, certificate: Certificate) -> Certificate:
    """The certificate, inconclusive if the trial's winning turns were computed differently."""
    packages = package_versions()
    clauses = dict.fromkeys(
        clause
        for session, side in trial.turns
        for clause in sessions_otherwise([session], side, packages, certificate)
    )
    if certificate.status != "equivalent" or not clauses:
        return certificate
    otherwise = {"timed_otherwise": [*clauses], "reason": timed_differently("it", clauses)}
    return certificate.model_copy(update={"status": "inconclusive"} | otherwise)


def timed_otherwise(
    bench: Bench, sessions: Sequence[Session], side: str, certificate: Certificate | None
) -> str | None:
    """Why a ratio of ``side`` to the baseline does not count: the timed side is not the
    certified one. None if it counts."""
    packages, found = package_versions(), list[str]()
    both = {BASELINE: bench.certificates[bench.study.baseline], side: certificate}
    for name, held in both.items():
        if held and (clauses := sessions_otherwise(sessions, name, packages, held)):
            found.append(timed_differently(name, clauses))
    return "; ".join(found) or None


def _certificate(bench: Bench, trial: Trial) -> Certificate:
    """The certificate of a combination, from its own short run."""
    # A part's own class compares it with its parent, not with the baseline.
    every = [bench.study.baseline, *sorted(trial.parts)]
    equivalence = loosest([bench.variants[name].equivalence for name in every])
    assert not isinstance(equivalence, Different), "only certified variants are combined"
    folder = bench.folder / "certificate" / trial.key
    spec = short_spec(bench.study, trial.spec).model_copy(update={"variant": NAME})
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    looks: dict[str, Any] = {}
    if isinstance(equivalence, Statistical):
        # Like a variant, it trains more seeds if the first ones decide nothing.
        looks = {"seeds": LOOKS * equivalence.seeds, "first_look": equivalence.seeds}
        looks |= {"margin": equivalence.loss, "reference": bench.reference / RECORD}
    asked = ShortRun(
        spec=folder / "spec.json",
        dropout=bench.study.model.dropout,
        late=LateSteps(schedule=trial.spec.training.schedule, steps=trial.spec.training.steps),
        data=bench.data,
        output=folder,
        budget=bench.study.certificate.budget,
        **looks,
    )
    record, failed = folder / RECORD, failures(folder / RECORD)
    if code := subprocess.run(command_of(asked), check=False).returncode:
        raise Refusal(f"{record}: its short run ended ({how_ended(code)}). {AGAIN}")
    if failures(record) > failed:
        bench.again()
    return certify_files(equivalence, record, bench.reference / RECORD)


def command_of(job: Job) -> list[str]:
    """The command that runs a job in its own processes, with the quick start that rules use."""
    order = json.dumps({"kind": job.kind, **job.model_dump(mode="json")})
    return [sys.executable, "-m", QUICK_START, "transformer_core.run.job", "--order", order]


def profile_of(bench: Bench, spec: RunSpec) -> Breakdown | None:
    """The profile of ``spec``, created like those of the variants; None if one of its jobs
    fails, which does not affect the search's result."""
    folder = bench.folder / "profile"
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    file, profiling = folder / "breakdown.json", bench.study.profiling
    asked = ProfileJob(
        spec=folder / "spec.json", data=bench.data, profiling=profiling, output=folder
    )
    events = folder / "events.parquet"
    reading = BreakdownJob(capture=folder / "capture.json", events=events, output=file)
    for job in (asked, reading):
        ended = subprocess.run(command_of(job), check=False, capture_output=True, text=True)
        if ended.returncode:
            log.warning("search: the winner has no profile: %s", ended.stderr[-500:])
            return None
    return read_record(file, Breakdown)
