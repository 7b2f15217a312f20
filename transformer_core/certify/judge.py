"""Whether a variant trains the same model: its certificate.

    python -m transformer_core.certify.judge --variant ddp --equivalence '{...}' \
        --run trajectories/ddp --reference trajectories/reference --output ddp.json

Both trainings start from the same weights and see the same global batches. What is compared
depends on the class of the variant:

- bitwise: every loss and gradient norm and the final weights, to the last bit;
- tolerance: the same, within relative bounds;
- statistical: the smoothed final losses over several seeds. The interval of their mean difference
  must lie within a margin around 0, which is two one-sided t tests at 5 %, shared out among two
  looks, on pairs that share a seed (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987, 657-680). A
  wide interval decides nothing: too few seeds cannot pass for equality.

In every class the gradients and updates of all tensors are compared as well, with what the run's
own weights, batches and gradients should have given (:mod:`checked_tensors`), and where there are
replicas, they must be equal after every step. With the record of the timed run, the kernels of both
are compared: a certificate of other kernels is none of what was timed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas.config.equivalence import (
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
    Repeat,
    SeedTrajectory,
    Trajectory,
)
from transformer_core.certify.bounds import (
    Compared,
    Pairs,
    Weights,
    deviations_of,
    in_words,
    read_tensors,
    spot_deviations,
)
from transformer_core.certify.kernels import as_timed, timed_otherwise
from transformer_core.common.digests import write_result
from transformer_core.common.endings import program
from transformer_core.common.records import read_record


def certify(
    equivalence: Bitwise | Tolerance | Statistical,
    run: Trajectory,
    reference: Trajectory,
    weights: Weights,
    timed: Repeat | None = None,
) -> Certificate:
    """The verdict on ``run``, and on whether it applies to ``timed``. Raises ConfigError if the
    two do not have the required seeds."""
    if run.status != "ok":
        return _certificate(equivalence, run, reference, run.status, run.reason or "")
    if reference.status != "ok":
        why = f"{reference.name}, with which it is compared, ended {reference.status}: "
        return _certificate(equivalence, run, reference, "failed", why + (reference.reason or ""))
    pairs = _pairs(equivalence, run, reference)
    course, expected = pairs[0]
    compared, failed = _judged(equivalence, pairs, weights, reference.name)
    if timed is not None:
        spots = list(spot_deviations(timed.spot_checks, equivalence))
        compared.deviations += spots
        failed += [in_words(deviation) for deviation in spots if not deviation.holds]
    otherwise = [] if timed is None else timed_otherwise(timed, run)
    undecided = list(compared.undecided)
    if otherwise:
        undecided.append(f"it was timed differently than certified ({'; '.join(otherwise)})")
    status: CertificateStatus = "equivalent"
    if failed:
        status = "not_equivalent"
    elif undecided:
        status = "inconclusive"
    return _certificate(
        equivalence,
        run,
        reference,
        status,
        "; ".join(failed or undecided or map(in_words, compared.deviations)),
        seeds=[mine.seed for mine, _ in pairs],
        deviations=compared.deviations,
        left_out=compared.left_out,
        steps=_steps(course, expected),
        power=compared.power,
        timed_otherwise=otherwise,
        kernels=run.kernels,
        as_timed=as_timed(run),
    )


def _judged(
    equivalence: Bitwise | Tolerance | Statistical,
    pairs: Pairs,
    weights: Weights,
    reference: str,
) -> tuple[Compared, list[str]]:
    """Compares the trainings, and describes any failures in words; empty if there are none."""
    course, expected = pairs[0]
    if any(mine.initial_sha256 != theirs.initial_sha256 for mine, theirs in pairs):
        return Compared([], [], [], None), [f"it starts from different weights than {reference}"]
    if len(course.losses) != len(expected.losses):
        return Compared([], [], [], None), [
            f"it takes a different number of steps than {reference}"
        ]
    compared = deviations_of(equivalence, pairs, weights)
    failed = [
        in_words(deviation)
        for deviation in compared.deviations
        if not deviation.holds and not (deviation.quantity == "final_loss" and compared.undecided)
    ]
    return compared, failed


def different(variant: str, equivalence: Different) -> Certificate:
    """The placeholder if no certificate is possible."""
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


def _pairs(equivalence: ClassOfEquivalence, run: Trajectory, reference: Trajectory) -> Pairs:
    count = equivalence.seeds if isinstance(equivalence, Statistical) else 1
    pairs = list(zip(run.seeds, reference.seeds, strict=False))
    if not isinstance(equivalence, Statistical):
        pairs = pairs[:count]  # of more, only the losses were kept
    seeds = [(mine.seed, theirs.seed) for mine, theirs in pairs]
    if len(pairs) < count or any(mine != theirs for mine, theirs in seeds):
        where = f"trajectories of {run.name} and {reference.name}"
        message = f"do not have {count} seeds in common"
        remedy = "run both again: snakemake --cores all --forcerun short_run"
        raise ConfigError([ConfigProblem(where, "seeds", seeds, message, remedy)])
    return pairs


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
    """The steps present in both."""
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


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.certify.judge",
        description="Say whether a variant trains the same model as its reference.",
    )
    parser.add_argument("--variant", required=True, help="name of the variant")
    parser.add_argument(
        "--equivalence", required=True, metavar="JSON", help="its class of equivalence, with bounds"
    )
    parser.add_argument("--run", type=Path, help="folder of its short run; none if it is different")
    parser.add_argument("--reference", type=Path, help="folder of the short run to compare with")
    parser.add_argument("--timed", type=Path, help="metrics.json of its timed run")
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
                read_record(options.timed, Repeat) if options.timed else None,
            )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.variant}: {certificate.status}: {certificate.reason}")
    write_result(options.output, certificate.model_dump_json(indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
