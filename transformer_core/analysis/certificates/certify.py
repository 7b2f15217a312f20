"""Whether a variant trains the same model: its certificate.

    python -m transformer_core.analysis.equivalence --variant ddp --equivalence '{...}' \
        --run trajectories/ddp --reference trajectories/reference --output ddp.json

Both trainings start from the same weights and see the same global batches. What is compared
depends on the class of the variant:

- bitwise: every loss and gradient norm and the final weights, to the last bit;
- tolerance: the same, within relative bounds;
- statistical: the smoothed final losses over several seeds. The 90 % interval of their mean
  difference must lie within a margin around 0, which is two one-sided t tests at 5 % on pairs that
  share a seed (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987, 657-680). A wide interval fails:
  too few seeds cannot pass for equality.

Where there are replicas, they must be equal after every step.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from scipy import stats

from schemas.equivalence import (
    AnyEquivalence,
    Bitwise,
    ClassOfEquivalence,
    Different,
    Statistical,
    Tolerance,
)
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import (
    Certificate,
    CertificateStatus,
    CertificateStep,
    Deviation,
    SeedTrajectory,
    Trajectory,
)
from transformer_core.analysis.files import read_record
from transformer_core.analysis.weights import Weights, largest_difference, read_tensors
from transformer_core.data.files import write_text

LEVEL = 0.05
"""Level of each of the two one-sided tests: their interval is one of 1 - 2 * LEVEL."""

WORDS = {
    "loss": "training loss",
    "grad_norm": "gradient norm",
    "weights": "final weights",
    "replicas": "replicas",
    "final_loss": "smoothed final loss",
}
"""What deviations are of."""

Pairs = list[tuple[SeedTrajectory, SeedTrajectory]]
"""Trainings of the variant and of the reference, by seed."""


def certify(
    equivalence: Bitwise | Tolerance | Statistical,
    run: Trajectory,
    reference: Trajectory,
    weights: Weights,
) -> Certificate:
    """The verdict on ``run``. Raises ConfigError if the two do not have the seeds that it needs."""
    if run.status != "ok":
        return _certificate(equivalence, run, reference, run.status, run.reason or "")
    if reference.status != "ok":
        why = f"{reference.name}, with which it is compared, ended {reference.status}: "
        return _certificate(equivalence, run, reference, "failed", why + (reference.reason or ""))
    pairs = _pairs(equivalence, run, reference)
    course, expected = pairs[0]
    deviations: list[Deviation] = []
    left_out: list[str] = []
    if any(mine.initial_sha256 != theirs.initial_sha256 for mine, theirs in pairs):
        failed = [f"it starts from other weights than {reference.name}"]
    elif len(course.losses) != len(expected.losses):
        failed = [f"it takes another number of steps than {reference.name}"]
    else:
        deviations, left_out = _deviations(equivalence, pairs, weights)
        failed = [in_words(deviation) for deviation in deviations if not deviation.holds]
    return _certificate(
        equivalence,
        run,
        reference,
        "not_equivalent" if failed else "equivalent",
        "; ".join(failed or map(in_words, deviations)),
        seeds=[mine.seed for mine, _ in pairs],
        deviations=deviations,
        left_out=left_out,
        steps=_steps(course, expected),
    )


def different(variant: str, equivalence: Different) -> Certificate:
    """What stands in place of a certificate where none is possible."""
    return Certificate(
        variant=variant,
        equivalence=equivalence,
        status="different",
        reason=equivalence.reason,
        reference=None,
        seeds=[],
        deviations=[],
        left_out=[],
        steps=[],
        provenance=None,
    )


def in_words(deviation: Deviation) -> str:
    """A deviation as a clause."""
    what = WORDS[deviation.quantity]
    if not deviation.measured:
        return f"{what} equal"
    return (
        f"{what} off by {deviation.measured:.1e} ({deviation.where}), {deviation.bound:.1e} allowed"
    )


def final_loss_interval(
    run: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """90 % interval of the mean relative difference of the smoothed final losses.

    Takes the losses by step of each seed; smoothed is the mean over the last third of the steps.
    Raises ValueError with a single seed.
    """
    if len(run) < 2:
        raise ValueError("an interval of a mean needs at least two seeds")
    mine_s, theirs_s = (
        np.array([np.mean(losses[-max(1, len(losses) // 3) :]) for losses in side])
        for side in (run, reference)
    )
    differences_s = (mine_s - theirs_s) / theirs_s
    error = differences_s.std(ddof=1) / np.sqrt(len(differences_s))
    half = stats.t.ppf(1 - LEVEL, len(differences_s) - 1) * error
    return float(differences_s.mean() - half), float(differences_s.mean() + half)


def _pairs(equivalence: ClassOfEquivalence, run: Trajectory, reference: Trajectory) -> Pairs:
    count = equivalence.seeds if isinstance(equivalence, Statistical) else 1
    pairs = list(zip(run.seeds, reference.seeds, strict=False))[:count]
    seeds = [(mine.seed, theirs.seed) for mine, theirs in pairs]
    if len(pairs) < count or any(mine != theirs for mine, theirs in seeds):
        where = f"trajectories of {run.name} and {reference.name}"
        message = f"are not {count} seeds that both have"
        remedy = "make both again: snakemake --cores all --forcerun short_run"
        raise ConfigError([ConfigProblem(where, "seeds", seeds, message, remedy)])
    return pairs


def _deviations(
    equivalence: Bitwise | Tolerance | Statistical, pairs: Pairs, weights: Weights
) -> tuple[list[Deviation], list[str]]:
    """Every quantity that the class compares, and the tensors that it leaves out."""
    mine, theirs = pairs[0]
    found: list[Deviation] = []
    left_out: list[str] = []
    match equivalence:
        case Statistical(loss=margin):
            runs, references = zip(*((m.losses, t.losses) for m, t in pairs), strict=True)
            low, high = final_loss_interval(runs, references)
            where = f"90 % interval over {len(pairs)} seeds: {low:+.1e} to {high:+.1e}"
            found.append(_deviation("final_loss", max(-low, high), margin, where))
        case Bitwise():
            apart = largest_difference(weights, everything=True)
            found += _step_by_step(mine, theirs, 0.0, 0.0)
            found.append(_deviation("weights", apart.deviation, 0.0, apart.tensor))
        case Tolerance(loss=loss, grad_norm=grad_norm, weights=bound):
            apart = largest_difference(weights, everything=False)
            left_out = apart.left_out
            found += _step_by_step(mine, theirs, loss, grad_norm)
            found.append(_deviation("weights", apart.deviation, bound, apart.tensor))
    spread = [m.replica_differences for m, _ in pairs if m.replica_differences is not None]
    if spread:
        largest = [max(of_ranks) for of_ranks in zip(*spread, strict=True)]
        step = int(np.argmax(largest))
        found.append(_deviation("replicas", largest[step], 0.0, f"step {step + 1}"))
    return found, left_out


def _step_by_step(
    mine: SeedTrajectory, theirs: SeedTrajectory, loss: float, grad_norm: float
) -> list[Deviation]:
    found = []
    for quantity, ours, expected, bound in (
        ("loss", mine.losses, theirs.losses, loss),
        ("grad_norm", mine.grad_norms, theirs.grad_norms, grad_norm),
    ):
        apart = [_relative(a, b) for a, b in zip(ours, expected, strict=True)]
        step = int(np.argmax(apart))
        found.append(_deviation(quantity, apart[step], bound, f"step {step + 1}"))
    return found


def _relative(value: float | None, expected: float | None) -> float:
    """Relative difference; 1 where only one of them is a number (a gradient that overflowed)."""
    if value is None or expected is None:
        return float(value is not expected)
    return abs(value - expected) / abs(expected) if expected else float(value != 0)


def _deviation(quantity: str, measured: float, bound: float, where: str) -> Deviation:
    return Deviation.model_validate(
        {"quantity": quantity, "measured": measured, "bound": bound, "where": where}
    )


def _certificate(
    equivalence: ClassOfEquivalence,
    run: Trajectory,
    reference: Trajectory,
    status: CertificateStatus,
    reason: str,
    **measured: Any,
) -> Certificate:
    nothing: dict[str, Any] = {"seeds": [], "deviations": [], "left_out": [], "steps": []}
    return Certificate(
        variant=run.name,
        equivalence=equivalence,
        status=status,
        reason=reason,
        reference=reference.name,
        provenance=run.provenance,
        **nothing | measured,
    )


def _steps(mine: SeedTrajectory, theirs: SeedTrajectory) -> list[CertificateStep]:
    """The steps that both have."""
    columns = (mine.losses, theirs.losses, mine.grad_norms, theirs.grad_norms)
    return [
        CertificateStep(
            step=step,
            loss=loss,
            reference_loss=reference_loss,
            grad_norm=norm,
            reference_grad_norm=reference_norm,
        )
        for step, (loss, reference_loss, norm, reference_norm) in enumerate(
            zip(*columns, strict=False), start=1
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.analysis.equivalence",
        description="Say whether a variant trains the same model as its reference.",
    )
    parser.add_argument("--variant", required=True, help="name of the variant")
    parser.add_argument(
        "--equivalence", required=True, metavar="JSON", help="its class of equivalence, with bounds"
    )
    parser.add_argument("--run", type=Path, help="folder of its short run; none if it is different")
    parser.add_argument("--reference", type=Path, help="folder of the short run to compare with")
    parser.add_argument("--output", required=True, type=Path, help="the certificate to write")
    options = parser.parse_args(arguments)
    equivalence = TypeAdapter(AnyEquivalence).validate_json(options.equivalence)
    try:
        if isinstance(equivalence, Different):
            certificate = different(options.variant, equivalence)
        else:
            if options.run is None or options.reference is None:
                parser.error(f"--run and --reference are needed for {equivalence.kind}")
            certificate = certify(
                equivalence,
                read_record(options.run / "trajectory.json", Trajectory),
                read_record(options.reference / "trajectory.json", Trajectory),
                Weights(
                    run=read_tensors(options.run / "final.safetensors"),
                    reference=read_tensors(options.reference / "final.safetensors"),
                    initial=read_tensors(options.reference / "initial.safetensors"),
                ),
            )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.variant}: {certificate.status}: {certificate.reason}")
    write_text(options.output, certificate.model_dump_json(indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
