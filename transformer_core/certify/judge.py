"""Whether a variant trains the same model: its certificate.

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

from pathlib import Path
from typing import Any

from schemas.config.measurement import (
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
from transformer_core.common.job import Job
from transformer_core.common.progress import log
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


class CertifyJob(Job):
    """Says whether a variant trains the same model as its reference."""

    kind = "certify"

    variant: str
    equivalence: AnyEquivalence
    """Its class of equivalence, with bounds."""
    short_run: Path | None = None
    """trajectory.json of its short run; null if it is different."""
    reference: Path | None = None
    """trajectory.json of the short run to compare with."""
    timed: Path | None = None
    """metrics.json of its timed run."""
    output: Path

    def run(self, log_file: Path | None) -> None:
        if isinstance(self.equivalence, Different):
            found = different(self.variant, self.equivalence)
        elif self.short_run is None or self.reference is None:
            message = f"is missing, and needed for {self.equivalence.kind}"
            field = "short_run" if self.short_run is None else "reference"
            problem = ConfigProblem("--order", field, None, message, "give a trajectory.json")
            raise ConfigError([problem])
        else:
            found = certify(
                self.equivalence,
                read_record(self.short_run, Trajectory),
                read_record(self.reference, Trajectory),
                Weights(
                    run=read_tensors(self.short_run.with_name("final.safetensors")),
                    reference=read_tensors(self.reference.with_name("final.safetensors")),
                    initial=read_tensors(self.reference.with_name("initial.safetensors")),
                ),
                read_record(self.timed, Repeat) if self.timed else None,
            )
        log.info("%s: %s: %s", self.variant, found.status, found.reason)
        write_result(self.output, found.model_dump_json(indent=1) + "\n")
