"""Whether a combination trains the same model."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.config.equivalence import Different
from schemas.config.variants import Variant
from schemas.results import Certificate, Session, Trajectory
from schemas.results.search import BASELINE
from transformer_core.certify.bounds import Weights, read_tensors
from transformer_core.certify.judge import certify
from transformer_core.certify.kernels import sessions_otherwise
from transformer_core.common.files import write_text
from transformer_core.common.records import read_record
from transformer_core.decide.search.trials import NAME, Bench, Trial
from transformer_core.machine.provenance import package_versions
from transformer_core.study.certification import short_spec
from transformer_core.study.combinations import equivalence_of

MOST_CERTIFIED = 3
"""Combinations that are certified at most until one holds."""


def certified(
    bench: Bench, variants: Mapping[str, Variant], trials: Sequence[Trial], reference: Path
) -> Trial | None:
    """The best trial that beats the baseline and trains the same model; None if none does."""
    better = [trial for trial in trials if trial.rounds and trial.rounds[-1] > 1]
    alike = (trial for trial in better[:MOST_CERTIFIED] if holds(bench, variants, trial, reference))
    return next(alike, None)


def holds(bench: Bench, variants: Mapping[str, Variant], trial: Trial, reference: Path) -> bool:
    """Whether a combination trains the same model, as it was timed; its certificate is kept with
    it."""
    if trial.certificate is None:
        trial.certificate = _of_its_turns(trial, _certificate(bench, variants, trial, reference))
    return trial.certificate.status == "equivalent"


def _of_its_turns(trial: Trial, certificate: Certificate) -> Certificate:
    """The certificate, inconclusive where the turns that the trial won were computed otherwise."""
    packages = package_versions()
    otherwise = [
        clause
        for session, side in trial.turns
        for clause in sessions_otherwise([session], side, packages, certificate)
    ]
    if certificate.status != "equivalent" or not otherwise:
        return certificate
    otherwise = list(dict.fromkeys(otherwise))
    reason = f"it was timed otherwise than certified ({'; '.join(otherwise)})"
    return certificate.model_copy(
        update={"status": "inconclusive", "reason": reason, "timed_otherwise": otherwise}
    )


def timed_otherwise(
    bench: Bench, sessions: Sequence[Session], side: str, certificate: Certificate | None
) -> str | None:
    """Why a ratio of ``side`` to the baseline does not count: what took turns is not what was
    certified. None where it is."""
    packages, found = package_versions(), list[str]()
    both = {BASELINE: bench.certificates[bench.study.baseline], side: certificate}
    for name, held in both.items():
        if held and (clauses := sessions_otherwise(sessions, name, packages, held)):
            found.append(f"{name} took its turns otherwise than certified ({'; '.join(clauses)})")
    return "; ".join(found) or None


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
    options = {
        "spec": folder / "spec.json",
        "seeds": seeds,
        "dropout": bench.study.model.dropout,
        "data": bench.data,
        "output": folder,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "transformer_core.certify.short_run", *words]
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
