"""Continues undecided comparisons until the study's time is spent.

Starts once everything that does not depend on comparisons is done. The study's remaining time, less
that reserved for verdicts, search and report, goes to one undecided comparison after another, most
important verdict per expected second first. Nothing is retrained, and added sessions are kept: with
a larger ``time`` the job adds more.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from schemas.base import MOST_SECONDS, seconds_of
from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results import Certificate, Pair, PairedRun, Refinement, Session, Stint, Unsettled
from transformer_core.common.digests import write_result
from transformer_core.common.endings import count_failure, reproducing_command
from transformer_core.common.folder_locks import exclusive
from transformer_core.common.job import Job
from transformer_core.common.progress import SessionLines, log
from transformer_core.common.records import read_record
from transformer_core.common.study_clock import CLOCK, JobTimes, read_clock
from transformer_core.decide.compare import counts
from transformer_core.decide.next_sessions import (
    Limits,
    Plan,
    SoFar,
    Standing,
    next_plan,
    standings,
    weights,
)
from transformer_core.measure.comparison import Kept, kept_in
from transformer_core.measure.sessions import SessionEndedError, Sessions, Side, for_devices
from transformer_core.run.launcher import spans_machines
from transformer_core.run.order import shard_manifests
from transformer_core.run.supervisor import end_on_request

Measure = Callable[[Plan, int], Session]
"""Runs a plan's session, by its number; SessionEndedError if a side ends early."""


class KeptStints:
    """Sessions of several comparisons in ``folder``, one file each, numbered in order.

    ``keys`` gives the required key of each comparison's sessions: those with another key come from
    another run spec, settings or code, and no longer count. Nor do those that are older than the first
    round, which has been measured again since.
    """

    def __init__(self, folder: Path, keys: Mapping[Pair, str]) -> None:
        self._folder = folder
        self._keys = keys
        self.last = max(self._files(), default=0)  # number of the last session; 0 for none
        self.last_stint = 0  # number of the last stint; 0 for none

    def read_into(self, pairs: Iterable[SoFar]) -> None:
        by_name = {pair.pair: pair for pair in pairs}
        for _, path in sorted(self._files().items()):
            if (kept := kept_in(path, "stint", "keys")) is None:
                continue
            session, stint, keys = kept
            self.last_stint = max(self.last_stint, stint)
            for variant, key in keys.items():
                name = Pair(variant, session.sides[0].name)
                if name not in by_name or self._keys.get(name) != key:
                    continue
                if all(session.started >= s.started for s in by_name[name].first.sessions[:1]):
                    by_name[name].add(session, stint)

    def add(self, session: Session, stint: int) -> None:
        reference, *variants = (side.name for side in session.sides)
        self.last += 1
        self.last_stint = stint
        kept = {
            "stint": stint,
            "keys": {variant: self._keys[Pair(variant, reference)] for variant in variants},
            "session": session.model_dump(mode="json"),
        }
        write_result(self._folder / f"session-{self.last}.json", json.dumps(kept))

    def _files(self) -> dict[int, Path]:
        found = self._folder.glob("session-*.json")
        numbered = ((path.stem.removeprefix("session-"), path) for path in found)
        return {int(number): path for number, path in numbered if number.isdigit()}


def sessions_of(
    specs: dict[str, RunSpec], comparing: Comparing, data: Path, folder: Path, command: str
) -> Measure:
    """Returns the function that runs a plan's sessions, with processes for these run specs."""

    def measure(plan: Plan, number: int) -> Session:
        sides = [Side(name, specs[name]) for name in (plan.reference, *plan.variants)]
        lines = SessionLines(f"{', '.join(plan.variants)} against {plan.reference}")
        lines.session = number
        asked = for_devices(comparing, [side.spec for side in sides])
        with Sessions.opened(sides, asked, data, folder, command, lines) as sessions:
            return sessions.run(number, lambda rounds, _: len(rounds) >= plan.rounds)

    return measure


def keys(
    pairs: Sequence[SoFar], specs: dict[str, RunSpec], comparing: Comparing, code: str
) -> dict[Pair, str]:
    """Identity key of each comparison's sessions, from its first round."""
    found = {}
    for pair in pairs:
        sides = [Side(name, specs[name]) for name in pair.pair[::-1]]
        asked = for_devices(comparing, [side.spec for side in sides])
        found[pair.pair] = Kept(Path(), sides, asked, code).key
    return found


def spend(
    pairs: Sequence[SoFar],
    limits: Limits,
    kept: KeptStints,
    measure: Measure,
    left: Callable[[], float],
    now: Callable[[], float] = time.monotonic,
    again: Callable[[], None] = lambda: None,
) -> list[Stint]:
    """Add sessions to ``pairs`` until ``left`` seconds are used, or nothing is undecided.

    Verdicts are checked only between batches; only the clock cuts a batch short. Calls ``again`` if
    a side ended for a reason that may be temporary.
    """
    done: list[Stint] = []

    def going_on() -> list[Standing]:
        stuck = {pair.pair for pair in pairs if pair.stuck}
        return [one for one in standings(pairs, limits.margin) if one.pair not in stuck]

    while plan := next_plan(going_on(), left(), limits):
        crew = [one for one in pairs if one.pair.reference == plan.reference]
        crew = [one for one in crew if one.pair.variant in plan.variants]
        number, began, made, reason = kept.last_stint + 1, now(), 0, ""
        while made < plan.sessions and (not made or plan.session_seconds <= left()):
            try:
                session = measure(plan, kept.last + 1)
            except SessionEndedError as error:
                reason = str(error)
                log.info("%s", reason)
                if error.outcome.again:
                    again()
                for pair in crew:
                    if error.side in pair.pair:
                        pair.stuck = reason
                break
            kept.add(session, number)
            made += 1
            for pair in crew:
                pair.add(session, number)
        stint = Stint(
            reference=plan.reference,
            variants=list(plan.variants),
            sessions=made,
            seconds=now() - began,
            reason=reason,
        )
        done.append(stint)
        log.info(
            "%s against %s: %d more sessions in %.0f s, %.0f s left",
            *(", ".join(plan.variants), plan.reference, made, stint.seconds, left()),
        )
    return done


def unsettled(pairs: Sequence[SoFar], limits: Limits) -> list[Unsettled]:
    """The comparisons without a verdict, and the approximate additional time for each."""
    stuck = {pair.pair: pair.stuck for pair in pairs}
    found = []
    for standing in standings(pairs, limits.margin):
        if not standing.decided:
            seconds, reason = limits.seconds(standing), stuck[standing.pair]
            if not reason and seconds > MOST_SECONDS:
                reason = "it would take more than a week"
            found.append(
                Unsettled(
                    **standing.pair._asdict(), seconds=None if reason else seconds, reason=reason
                )
            )
    return sorted(found, key=lambda one: (one.seconds is None, one.seconds))


FOLLOWING = {"compare": 1.0, "families": 1.0, "claims": 1.0, "search": 0.0, "page": 9.0}
"""Rules that run after the comparisons, and roughly how many times as long as a light one they take,
until they have been timed; the search has its budget."""
LIGHT = ("combine", "certify", "breakdown", "utilisation")
"""Rules that read results and compute little, like most of the following ones."""


def kept_for_the_rest(study: Study, jobs: Mapping[str, JobTimes]) -> float:
    """Seconds reserved for everything after the comparisons: as long as it took before on this
    machine, or as long as earlier jobs suggest."""
    means = {rule: times.mean for rule, times in jobs.items()}
    light = max((means[rule] for rule in LIGHT if rule in means), default=1.0)
    guessed = {rule: factor * light for rule, factor in FOLLOWING.items()}
    if study.search is not None and study.search.budget:
        # The search's budget, the short runs of a certificate, and a profile.
        runs = (means.get(rule, 0.0) for rule in ("short_run", "profile"))
        guessed["search"] = study.search.budget + 2 * sum(runs)
    if study.quality is not None:
        # The quality trainings restart for a new recommendation.
        guessed["quality"] = study.quality.budget / 2
    return sum(means.get(rule, guess) for rule, guess in guessed.items())


class RefineJob(Job):
    """Continues undecided comparisons until the study's time is spent."""

    kind = "refine"

    study: Study  # its settings of time, and the defaults of most others
    specs: list[Path]  # spec.json of every variant
    pairs: list[Path]  # the first rounds
    certificates: list[Path]
    claimed: list[tuple[str, str]]  # comparisons of claims, each a variant and its reference
    data: Path  # results/data/<corpus>
    clock: Path = CLOCK  # the clock of the study
    of_turns: str = ""  # the digest of the sources of comparisons
    sessions: Path  # folder of added sessions
    records: Path  # folder of the records
    output: Path

    def run(self, log_file: Path | None) -> None:
        end_on_request()
        study = self.study
        files = {file.parent.name: file for file in self.specs}
        specs = {name: read_record(file, RunSpec) for name, file in files.items()}
        runs = [read_record(file, PairedRun) for file in self.pairs]
        certificates = [read_record(file, Certificate) for file in self.certificates]
        certified = {one.variant: one.status == "equivalent" for one in certificates}
        by_variant = {one.variant: one for one in certificates}
        counted = {run.pair for run in runs if counts(run, by_variant)}
        matters = weights(runs, self.claimed, study.baseline, certified)
        pairs = [SoFar(run, matters[run.pair]) for run in runs]
        for pair in pairs:
            if any(spans_machines(specs[name]) for name in pair.pair):
                pair.stuck = "sides on several hosts are timed in their first round only"
        comparing = study.comparison
        limits = Limits(comparing.margin, comparing.pairs, comparing.together)
        asked = seconds_of(study.time) if study.time else 0.0

        began, started = read_clock(self.clock).spent(time.time()), time.monotonic()

        def spent() -> float:
            # The study's clock stands still if its Snakemake was killed.
            passed = began + time.monotonic() - started
            return max(passed, read_clock(self.clock).spent(time.time()))

        with exclusive(self.sessions):
            command = reproducing_command(self.output)
            measure = sessions_of(specs, comparing, self.data, self.sessions, command)
            kept = KeptStints(self.sessions, keys(pairs, specs, comparing, self.of_turns))
            rest = kept_for_the_rest(study, read_clock(self.clock).jobs)
            kept.read_into(pairs)
            log.info("%.0f s of %.0f s spent; %.0f s reserved for the report", began, asked, rest)
            again = partial(count_failure, self.output)
            stints = spend(
                pairs, limits, kept, measure, lambda: asked - rest - spent(), again=again
            )
            result = Refinement(
                asked_seconds=asked,
                kept_seconds=rest,
                ended_at_seconds=spent(),
                stints=stints,
                unsettled=[
                    one
                    for one in unsettled(pairs, limits)
                    if Pair(one.variant, one.reference) in counted
                ],
            )
            for path in self.sessions.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
        for pair in pairs:
            inputs = [*(files[name] for name in pair.pair), *shard_manifests(self.data)]
            text = pair.record().model_dump_json(indent=1) + "\n"
            write_result(self.records / f"{pair.pair}.json", text, inputs)
        write_result(self.output, result.model_dump_json(indent=1) + "\n")
