"""Whether a variant trains the same model: its certificate.

Both trainings start from the same weights and see the same global batches. The class of the variant
decides which quantities are compared:

- bitwise: every loss and gradient norm and the final weights, to the last bit;
- tolerance: the same, within relative bounds;
- statistical: the smoothed final losses over several seeds
  (:mod:`transformer_core.certify.final_losses`).

Every class also compares the gradients and updates of all tensors with those expected from the
run's own weights, batches and gradients (:mod:`transformer_core.certify.checker`), and requires
replicas to be equal after every step. The class of another model by design compares only these. Given
the record of the timed run, it compares the kernels of both: a certificate says nothing about a timed
run that used other kernels.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from schemas.config.measurement import AnyEquivalence, Bitwise, Different, Statistical, Tolerance
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import (
    Certificate,
    CertificateStatus,
    Repeat,
    Trajectory,
)
from transformer_core.certify.bounds import (
    WORDS,
    Compared,
    Pairs,
    Weights,
    compares_updates,
    deviations_of,
    in_words,
    nearest,
    own_deviations,
    read_tensors,
    spot_deviations,
)
from transformer_core.certify.kernels import as_timed, timed_otherwise
from transformer_core.common.digests import write_result
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.markdown import cell
from transformer_core.common.percent import percent
from transformer_core.common.progress import log
from transformer_core.common.records import read_record

WRONG = "its steps are not those that its own settings ask for"


def certify(
    equivalence: Bitwise | Tolerance | Statistical,
    run: Trajectory,
    reference: Trajectory,
    weights: Weights,
    timed: Repeat | None = None,
) -> Certificate:
    """The verdict on ``run``, and on whether it applies to ``timed``. Raises ConfigError if
    ``run`` and ``reference`` do not have the required seeds in common."""
    certificate = partial(
        _certificate, run.name, equivalence, reference=reference.name, provenance=run.provenance
    )
    if run.status != "ok":
        return certificate(run.status, run.reason or "")
    if reference.status != "ok":
        why = f"{reference.name}, with which it is compared, ended {reference.status}: "
        return certificate("failed", why + (reference.reason or ""))
    pairs = _pairs(equivalence, run, reference)
    compared, failed = Compared([], [], []), _unlike(pairs, reference.name)
    if not failed:
        compared = deviations_of(equivalence, pairs, weights)
    known = _known(equivalence, compared, run, timed)
    failed += compared.failed
    undecided = compared.undecided
    if timed is not None and timed.status != "ok":
        undecided.append(f"its own training ended {timed.status}: {timed.reason}")
    return certificate(
        "not_equivalent" if failed else "inconclusive" if undecided else "equivalent",
        "; ".join(failed or undecided or map(in_words, compared.deviations)),
        seeds=[mine.seed for mine, _ in pairs],
        steps=min(len(training.losses) for training in pairs[0]),
        power=compared.power,
        **known,
    )


def _unlike(pairs: Pairs, reference: str) -> list[str]:
    """The reason why two trainings cannot be compared; empty if they can."""
    if any(mine.initial_sha256 != theirs.initial_sha256 for mine, theirs in pairs):
        return [f"it starts from different weights than {reference}"]
    if len(pairs[0][0].losses) != len(pairs[0][1].losses):
        return [f"it takes a different number of steps than {reference}"]
    return []


def _known(
    equivalence: AnyEquivalence, compared: Compared, run: Trajectory, timed: Repeat | None
) -> dict[str, Any]:
    """Adds the checked steps of the ``timed`` run, and how it differed from ``run``, to ``compared``.
    Returns the fields of a certificate that say so, and what was compared."""
    otherwise = [] if timed is None else timed_otherwise(timed, run)
    if timed is not None:
        compared.deviations += spot_deviations(timed.spot_checks, equivalence)
    if otherwise:
        compared.undecided.append(
            f"it was timed differently than certified ({'; '.join(otherwise)})"
        )
    return {
        "deviations": compared.deviations,
        "left_out": compared.left_out,
        "timed_otherwise": otherwise,
        "kernels": run.kernels,
        "as_timed": as_timed(run),
    }


def certify_files(
    equivalence: Bitwise | Tolerance | Statistical,
    run: Path,
    reference: Path,
    timed: Repeat | None = None,
) -> Certificate:
    """:func:`certify` for two short runs, given their trajectory.json."""
    return certify(
        equivalence,
        read_record(run, Trajectory),
        read_record(reference, Trajectory),
        Weights(
            run=read_tensors(run.with_name("final.safetensors")),
            reference=read_tensors(reference.with_name("final.safetensors")),
            initial=read_tensors(reference.with_name("initial.safetensors")),
        ),
        timed,
    )


def different(
    variant: str,
    equivalence: Different,
    run: Trajectory | None = None,
    timed: Repeat | None = None,
) -> Certificate:
    """The certificate of a variant that trains another model by design: whether it takes the steps that
    its own settings ask for. Without a short ``run`` nothing was checked."""
    if run is None:
        reason = f"{equivalence.reason} Its own steps were not checked."
        return _certificate(variant, equivalence, "different", reason)
    certificate = partial(_certificate, variant, equivalence, provenance=run.provenance)
    if run.status != "ok":
        return certificate(run.status, run.reason or "")
    mine = run.seeds[0]
    compared = own_deviations(equivalence, [mine])
    known = _known(equivalence, compared, run, timed)
    kinds = "gradients and updates" if compares_updates(mine) else "gradients"
    checked = f"Its own {kinds} are right, tensor by tensor."
    if compared.undecided:
        checked = f"Whether its own steps are right is unknown: {'; '.join(compared.undecided)}."
    failed = "; ".join(compared.failed)
    return certificate(
        "not_equivalent" if failed else "different",
        f"{WRONG}: {failed}" if failed else f"{equivalence.reason} {checked}",
        seeds=[mine.seed],
        steps=len(mine.losses),
        **known,
    )


def _pairs(
    equivalence: Bitwise | Tolerance | Statistical, run: Trajectory, reference: Trajectory
) -> Pairs:
    pairs = list(zip(run.seeds, reference.seeds, strict=False))
    if isinstance(equivalence, Statistical):
        count = equivalence.seeds
    else:
        count, pairs = 1, pairs[:1]  # the records of further seeds hold only losses
    seeds = [(mine.seed, theirs.seed) for mine, theirs in pairs]
    if len(pairs) < count or any(mine != theirs for mine, theirs in seeds):
        where = f"trajectories of {run.name} and {reference.name}"
        message = f"do not have {count} seed{'s' if count > 1 else ''} in common"
        remedy = "run both again: snakemake --cores all --forcerun short_run"
        raise ConfigError([ConfigProblem(where, "seeds", seeds, message, remedy)])
    return pairs


def _certificate(
    variant: str,
    equivalence: AnyEquivalence,
    status: CertificateStatus,
    reason: str,
    **known: Any,
) -> Certificate:
    """A certificate whose fields are empty except those given."""
    empty: dict[str, Any] = {"reference": None, "provenance": None}
    empty |= {"seeds": [], "deviations": [], "left_out": []}
    fields = {"variant": variant, "equivalence": equivalence, "status": status, "reason": reason}
    return Certificate(**empty | fields | known)


class CertifyJob(Job):
    """Decides whether a variant trains the same model as its reference."""

    kind = "certify"

    variant: str
    equivalence: AnyEquivalence
    """The class of equivalence of the variant, with bounds."""
    short_run: Path | None = None
    """trajectory.json of the variant's short run; null if its steps cannot be checked."""
    reference: Path | None = None
    """trajectory.json of the short run to compare with."""
    timed: Path | None = None
    """metrics.json of the variant's timed run."""
    output: Path

    def run(self, log_file: Path | None) -> None:
        timed = read_record(self.timed, Repeat) if self.timed else None
        if isinstance(self.equivalence, Different):
            run = read_record(self.short_run, Trajectory) if self.short_run else None
            found = different(self.variant, self.equivalence, run, timed)
        elif self.short_run is None or self.reference is None:
            message = f"is missing; the class {self.equivalence.kind} needs it"
            field = "short_run" if self.short_run is None else "reference"
            problem = ConfigProblem("--order", field, None, message, "give a trajectory.json")
            raise ConfigError([problem])
        else:
            found = certify_files(self.equivalence, self.short_run, self.reference, timed)
        log.info("%s: %s: %s", self.variant, found.status, found.reason)
        write_result(self.output, found.model_dump_json(indent=1) + "\n")


def table(certificates: Sequence[Certificate]) -> str:
    """Certificates in Markdown: counts by status, and a row for each certificate with the quantity
    closest to its bound, or the reason."""
    count = Counter(each.status for each in certificates)
    lines = [", ".join(f"{number} {status}" for status, number in count.most_common()) + ".", ""]
    lines += ["| variant | class | status | nearest to its bound, or why |", "|---|---|---|---|"]
    for each in certificates:
        words = each.reason
        if (found := nearest(each)) is not None:
            share = percent(found.measured / found.bound, 0)
            words = f"{WORDS[found.quantity]}, {share} ({found.where})"
        lines.append(
            f"| {each.variant} | {each.equivalence.kind} | {each.status} | {cell(words)} |"
        )
    return "\n".join(lines) + "\n"


class CertificatesJob(Job):
    """Lists all certificates of a study in one Markdown table."""

    kind = "certificates"

    certificates: list[Path]
    """results/equivalence/*.json"""
    output: Path

    def run(self, log_file: Path | None) -> None:
        text = table([read_record(file, Certificate) for file in self.certificates])
        write_text(self.output, text)
        log.info("%s", text.partition("\n")[0])
