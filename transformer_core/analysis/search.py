"""The fastest combination of techniques on this machine that trains the same model.

    python -m transformer_core.analysis.search --study study.json --variants variants.json \
        --comparisons comparisons.json --certificates equivalence/*.json \
        --reference equivalence/trajectories/reference --data data/<corpus> \
        --output search.json --recommended recommended.yaml

Single effects do not multiply: a technique may pay only beside another, or not at all once another
has taken what there was to gain. So combinations themselves are measured, by successive halving
(Karnin, Koren and Somekh, Almost Optimal Exploration in Multi-Armed Bandits, 2013; Jamieson and
Talwalkar, arXiv 1502.07943): all take turns with the baseline, the better half stays, and the next
round measures it in fresh processes with twice the turns. Which combinations enter is decided by
the product of the single effects. The best one whose certificate holds is then compared with the
baseline anew: the rounds that it won are no evidence, because it won them.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from schemas.certificates import short_spec
from schemas.combinations import candidates, combine, equivalence_of
from schemas.equivalence import Different
from schemas.errors import ConfigError
from schemas.measure import Comparing
from schemas.results import Certificate, Comparison, Session, Trajectory
from schemas.results.search import Contender, SearchResult, Stage
from schemas.study import RunSpec, Study, Variant
from transformer_core.analysis.equivalence import certify
from transformer_core.analysis.files import read_as, read_record
from transformer_core.analysis.verdicts import session_effects
from transformer_core.analysis.weights import Weights, read_tensors
from transformer_core.data.files import write_text
from transformer_core.measure.paired import Lines, end_on_request
from transformer_core.measure.pairs import session_ratio
from transformer_core.measure.progress import log as progress_log
from transformer_core.measure.progress import log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import exclusive, reproducing_command
from transformer_core.measure.session import SessionEndedError, Sessions, Side
from transformer_core.measure.turns import Desk

BASELINE = "baseline"
NAME = "recommended"
FINAL_SHARE = 0.5
"""Share of the budget that is kept for the final comparison."""
FEWEST_TURNS = 5
"""Turns of a round at least: a trimmed mean of fewer leaves nothing out."""
MOST_CERTIFIED = 3
"""Combinations that are certified at most until one holds."""

Parts = tuple[str, ...]


@dataclass
class Trial:
    """A combination on its way through the rounds."""

    parts: Parts
    spec: RunSpec
    predicted: float
    rounds: list[float] = field(default_factory=list)
    status: str = "ok"
    reason: str | None = None
    certificate: Certificate | None = None

    @property
    def rank(self) -> tuple[int, float]:
        """The larger, the better: rounds survived, then what the last of them measured."""
        return len(self.rounds), self.rounds[-1] if self.rounds else self.predicted


@dataclass
class Bench:
    """What all sessions of a search share."""

    study: Study
    baseline: RunSpec
    data: Path
    folder: Path
    command: str
    started: datetime
    deadline: float

    def sessions(
        self, specs: Mapping[str, RunSpec], comparing: Comparing, desk: Desk, name: str
    ) -> Sessions:
        """Sessions of these run specs beside the baseline."""
        sides = [
            Side(side, self._write(name, side, spec), spec)
            for side, spec in {BASELINE: self.baseline, **specs}.items()
        ]
        lines = Lines(f"search, {name}")
        return Sessions(
            sides, comparing, self.data, self.folder / name, desk, self.command, self.started, lines
        )

    def desk(self) -> Desk:
        """A desk for one group of sessions."""
        return Desk(self.folder / "desk.json", self.baseline.machine.nodes > 1)

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.deadline - time.monotonic()

    def _write(self, name: str, side: str, spec: RunSpec) -> Path:
        path = self.folder / name / f"{side}.spec.json"
        write_text(path, spec.model_dump_json() + "\n")
        return path


def eligible(study: Study, certificates: Mapping[str, Certificate]) -> list[str]:
    """The variants that may be part of a combination: all that train the same model."""
    return [
        name
        for name in study.variants
        if name != study.baseline and certificates[name].status == "equivalent"
    ]


def own_effects(
    study: Study, variants: Mapping[str, Variant], comparisons: Sequence[Comparison]
) -> dict[str, float]:
    """Logarithm of what each variant's own change does to the throughput, as far as measured.

    The effect of a variant without that of its parent; 0 where one of them was not measured.
    """
    measured = {
        comparison.variant: log(comparison.speedup.median)
        for comparison in comparisons
        if comparison.reference == study.baseline and comparison.speedup
    } | {study.baseline: 0.0}
    return {
        name: measured[name] - measured[parent]
        for name in study.variants
        if (parent := variants[name].parent or study.baseline) in measured and name in measured
    }


def shortlist(
    study: Study,
    variants: Mapping[str, Variant],
    parts: Sequence[str],
    effects: Mapping[str, float],
) -> tuple[list[Trial], int]:
    """The combinations that the first round measures, and how many there are."""
    assert study.search is not None, "somebody asked for a search"
    found = [
        Trial(chosen, spec, exp(sum(effects.get(part, 0.0) for part in chosen)))
        for chosen, spec in candidates(study, variants, parts, study.search.largest)
    ]
    # Of two with the same prediction, the simpler one.
    found.sort(key=lambda trial: (-trial.predicted, len(trial.parts)))
    return found[: study.search.candidates], len(found)


def halve(bench: Bench, trials: list[Trial], together: int) -> None:
    """Measure all trials, then the better half with twice the turns, and so on until one is left.

    The first round is always made. A trial that cannot run loses, with its status.
    """
    comparing, number, spent = bench.study.comparison, 1, 0.0
    alive = list(trials)
    while len(alive) > 1 or (alive and number == 1):
        reserve = FINAL_SHARE * bench.study.search.budget if bench.study.search else 0.0
        if number > 1 and bench.left() - reserve < 1.2 * spent:
            progress_log.info("search: no time for round %d", number)
            return
        began = time.monotonic()
        pairs = max(FEWEST_TURNS, comparing.pairs * 2 ** (number - 1) // 2)
        for start in range(0, len(alive), together - 1):
            _round(bench, alive[start : start + together - 1], pairs, f"round-{number}-{start}")
        spent = time.monotonic() - began
        alive = sorted(
            (trial for trial in alive if trial.status == "ok"), key=lambda trial: -trial.rounds[-1]
        )
        alive = alive[: -(-len(alive) // 2)]
        number += 1


def _round(bench: Bench, trials: list[Trial], pairs: int, name: str) -> None:
    """One session of these trials and the baseline; without those that cannot run."""
    running = {f"trial_{number}": trial for number, trial in enumerate(trials)}
    while running:
        specs = {side: trial.spec for side, trial in running.items()}
        with bench.desk() as desk:
            try:
                session = bench.sessions(specs, bench.study.comparison, desk, name).run(
                    1, lambda rounds, _: len(rounds) >= pairs
                )
            except SessionEndedError as error:
                if error.side == BASELINE:
                    raise
                trial = running.pop(error.side)
                trial.status, trial.reason = error.status, error.reason
                continue
        for side, trial in running.items():
            trial.rounds.append(exp(session_ratio(session.rounds, BASELINE, side).estimate))
        return


def certified(
    bench: Bench, variants: Mapping[str, Variant], trials: Sequence[Trial], reference: Path
) -> Trial | None:
    """The best trial that beats the baseline and trains the same model; None if none does."""
    better = [trial for trial in trials if trial.rounds and trial.rounds[-1] > 1]
    for trial in better[:MOST_CERTIFIED]:
        trial.certificate = _certificate(bench, variants, trial, reference)
        if trial.certificate.status == "equivalent":
            return trial
    return None


def _certificate(
    bench: Bench, variants: Mapping[str, Variant], trial: Trial, reference: Path
) -> Certificate:
    """The certificate of a combination, from a short run of its own."""
    equivalence = equivalence_of(variants, trial.parts)
    assert not isinstance(equivalence, Different), "only certified variants are combined"
    folder = bench.folder / "certificate" / "+".join(trial.parts)
    spec = short_spec(bench.study, trial.spec).model_copy(update={"variant": NAME})
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    seeds = getattr(equivalence, "seeds", 1)
    options = {"spec": folder / "spec.json", "seeds": seeds, "data": bench.data, "output": folder}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "transformer_core.measure.short_run", *words]
    subprocess.run(command, check=True)
    return certify(
        equivalence,
        read_record(folder / "trajectory.json", Trajectory),
        read_record(reference / "trajectory.json", Trajectory),
        Weights(
            run=read_tensors(folder / "final.safetensors"),
            reference=read_tensors(reference / "final.safetensors"),
            initial=read_tensors(reference / "initial.safetensors"),
        ),
    )


def stages(
    study: Study, variants: Mapping[str, Variant], parts: Parts, effects: Mapping[str, float]
) -> tuple[dict[str, Parts], dict[str, Parts]]:
    """The steps from the baseline to a combination, and the combination without each part.

    By the part that is added or left out; the one with the largest effect of its own is added
    first. A step whose changes do not stand alone (a bucket view without DistributedDataParallel)
    is made later, or left out.
    """
    waiting = sorted(parts, key=lambda part: -effects.get(part, 0.0))
    steps: dict[str, Parts] = {}
    have: Parts = ()
    while waiting:
        valid = [p for p in waiting if combine(study, variants, (*have, p), NAME) is not None]
        if not valid:
            break
        part = valid[0]
        waiting.remove(part)
        have = (*have, part)
        steps[part] = have
    without = {
        part: rest
        for part in parts
        if (rest := tuple(other for other in parts if other != part))
        and combine(study, variants, rest, NAME) is not None
    }
    return steps, without


def final_sessions(bench: Bench, specs: Mapping[str, RunSpec]) -> list[Session]:
    """Sessions of all stages and the baseline, at least as many as a comparison takes."""
    comparing, done = bench.study.comparison, list[Session]()
    with bench.desk() as desk:
        sessions = bench.sessions(specs, comparing, desk, "final")
        while len(done) < comparing.sessions_least or (
            len(done) < comparing.sessions_most
            and bench.left() > fmean(session.seconds for session in done)
        ):
            done.append(
                sessions.run(len(done) + 1, lambda rounds, _: len(rounds) >= comparing.pairs)
            )
    return done


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
    result: dict[str, Any] = {"baseline": study.baseline, "eligible": parts}

    def ended(status: str, reason: str, **more: object) -> SearchResult:
        nothing = {"considered": 0, "contenders": [], "parts": [], "spec": baseline}
        nothing |= {"certificate": None, "waterfall": [], "left_out": [], "sessions": []}
        seconds = time.monotonic() - began
        origin = collect(baseline, command, started)
        return SearchResult.model_validate(
            {**nothing, **result, **more, "status": status, "reason": reason}
            | {"seconds": seconds, "provenance": origin}
        )

    if asked is None or not asked.budget:
        return ended("not_searched", "the study gives no time for it (search.budget)")
    if certificates[study.baseline].status != "equivalent":
        return ended("not_searched", f"the baseline {study.baseline} has no certificate")
    if not parts:
        return ended("not_searched", "no variant of the study has a certificate")
    effects = own_effects(study, variants, comparisons)
    trials, considered = shortlist(study, variants, parts, effects)
    result["considered"] = considered
    bench = Bench(study, baseline, data, folder, command, started, began + asked.budget)
    halve(bench, trials, asked.together)
    trials.sort(key=lambda trial: trial.rank, reverse=True)
    best = certified(
        bench, variants, [trial for trial in trials if trial.status == "ok"], reference
    )
    contenders = [
        Contender(
            parts=list(trial.parts),
            predicted=trial.predicted,
            rounds=trial.rounds,
            status=trial.status,
            reason=trial.reason,
            certificate=trial.certificate.status if trial.certificate else None,
        )
        for trial in trials
    ]
    result["contenders"] = contenders
    if best is None:
        return ended("baseline", "no certified combination was faster than the baseline")
    steps, without = stages(study, variants, best.parts, effects)
    sides: dict[Parts, str] = {}
    for chosen in (*steps.values(), *without.values()):
        if len(sides) < asked.together - 1:
            sides.setdefault(tuple(sorted(chosen)), f"stage_{len(sides)}")
    specs = {side: combine(study, variants, chosen, NAME) for chosen, side in sides.items()}
    sessions = final_sessions(bench, {s: spec for s, spec in specs.items() if spec is not None})
    found = session_effects(sessions, BASELINE, list(sides.values()), study.comparison)

    def shown(chosen: Mapping[str, Parts]) -> list[Stage]:
        return [
            Stage(parts=list(some), change=part, effect=found[side])
            for part, some in chosen.items()
            if (side := sides.get(tuple(sorted(some))))
        ]

    effect = found[sides[tuple(sorted(best.parts))]]
    more = {"waterfall": shown(steps), "left_out": shown(without), "sessions": sessions}
    if effect.verdict != "FASTER":
        reason = "the best combination of the search is not shown to be faster than the baseline"
        return ended("baseline", reason, **more)
    spec = combine(study, variants, best.parts, NAME)
    winner = {"parts": list(best.parts), "spec": spec, "certificate": best.certificate}
    return ended("found", "the fastest certified combination of the search", **more, **winner)


def recommended_yaml(result: SearchResult) -> str:
    """The run spec as YAML, with what is known of it in comments."""
    lines = [
        "# The run spec that this machine is recommended, found by",
        f"#   {result.provenance.command}",
        f"# {' + '.join(result.parts) or result.baseline}: {result.reason}.",
    ]
    stage = next((s for s in result.waterfall if set(s.parts) == set(result.parts)), None)
    if result.parts and stage and stage.effect.ratio:
        ratio = stage.effect.ratio
        lines.append(
            f"# Throughput {ratio.median:.3f} x that of {result.baseline}, 95 % interval "
            f"{ratio.low:.3f} to {ratio.high:.3f}."
        )
    if result.certificate:
        lines.append(f"# Certificate: {result.certificate.status}, {result.certificate.reason}.")
    body = yaml.safe_dump(result.spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return "\n".join(lines) + "\n" + body


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.analysis.search",
        description="Find the fastest combination of techniques that trains the same model.",
    )
    parser.add_argument("--study", type=Path, required=True, help="the study as JSON")
    parser.add_argument("--variants", type=Path, required=True, help="its variants as JSON")
    parser.add_argument("--comparisons", type=Path, required=True, help="comparisons.json")
    parser.add_argument(
        "--certificates", type=Path, required=True, nargs="+", help="certificate of every variant"
    )
    parser.add_argument(
        "--reference", type=Path, required=True, help="folder of the short run of the reference"
    )
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--output", type=Path, required=True, help="search.json")
    parser.add_argument("--recommended", type=Path, required=True, help="the run spec as YAML")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    options = parser.parse_args(arguments)
    log_to(options.log_file)
    end_on_request()
    folder = options.output.with_suffix("")
    try:
        study = read_record(options.study, Study)
        variants: dict[str, Variant] = read_as(options.variants, dict[str, Variant])
        comparisons: list[Comparison] = read_as(options.comparisons, list[Comparison])
        read = [read_record(file, Certificate) for file in options.certificates]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    with exclusive(folder):
        result = search(
            study,
            variants,
            comparisons,
            {certificate.variant: certificate for certificate in read},
            options.reference,
            options.data,
            folder,
            reproducing_command(options.output),
        )
        write_text(options.recommended, recommended_yaml(result))
        write_text(options.output, result.model_dump_json(indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"recommended: {' + '.join(result.parts) or result.baseline} ({result.reason})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
