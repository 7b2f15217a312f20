"""How far a variant is from its reference in every quantity that its class compares."""

from dataclasses import dataclass

import numpy as np

from schemas.config.equivalence import Bitwise, Statistical, Tolerance
from schemas.results import Certificate, Deviation, SeedTrajectory
from transformer_core.certify.certificates.checked_tensors import judge
from transformer_core.certify.certificates.dropout_places import judge_dropout
from transformer_core.certify.certificates.judged_moments import judge_moments
from transformer_core.certify.certificates.weight_distance import Weights, largest_difference
from transformer_core.certify.trajectory.final_losses import compare_final_losses

WORDS = {
    "loss": "training loss",
    "grad_norm": "gradient norm",
    "weights": "final weights",
    "replicas": "replicas",
    "final_loss": "smoothed final loss",
    "point_loss": "loss from the same weights",
    "point_norm": "gradient norm from the same weights",
    "gradient": "gradient of a tensor",
    "gradient_ratio": "norm of a tensor's gradient",
    "update": "update of a tensor",
    "update_ratio": "norm of a tensor's update",
    "resumed": "state after a checkpoint",
    "decoding": "logits of decoding",
    "validation": "validation",
    "dropout": "dropout",
    "dropout_loss": "mean loss with dropout",
    "dropout_gradient": "mean gradient norm with dropout",
    "dropout_spread": "spread of the loss with dropout",
    "dropout_draws": "draws of dropout",
    "dropout_slope": "slope of the loss with dropout",
}
"""What deviations are of."""

Pairs = list[tuple[SeedTrajectory, SeedTrajectory]]
"""Trainings of the variant and of the reference, by seed."""


@dataclass
class Compared:
    """What a certificate is made of."""

    deviations: list[Deviation]
    """Every quantity that the class compares."""
    left_out: list[str]
    """Tensors that are not compared."""
    undecided: list[str]
    """Why it cannot tell, where it cannot."""
    power: float | None
    """:attr:`schemas.results.Certificate.power`."""


def deviations_of(
    equivalence: Bitwise | Tolerance | Statistical, pairs: Pairs, weights: Weights
) -> Compared:
    """What trainings of a variant are beside those of the reference."""
    mine, theirs = pairs[0]
    found: list[Deviation] = []
    left_out: list[str] = []
    undecided: list[str] = []
    power: float | None = None
    match equivalence:
        case Statistical(loss=margin):
            runs, references = zip(*((m.losses, t.losses) for m, t in pairs), strict=True)
            outcome = compare_final_losses(runs, references, margin)
            where = f"interval over {len(pairs)} seeds: {outcome}"
            found.append(_deviation("final_loss", outcome.farthest, margin, where))
            undecided += outcome.undecided
            power = outcome.power
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
    if mine.dropout is not None:
        found += judge_dropout(mine.dropout, mine.dropout_probability)
    if mine.moments is not None and theirs.moments is not None:
        reduced = isinstance(equivalence, Statistical)
        found += judge_moments(mine.moments, theirs.moments, reduced)
    if mine.checks is None:
        undecided.append("its gradients were not compared tensor by tensor")
        return Compared(found, left_out, undecided, power)
    for checks, how in ((mine.checks, ""), (mine.as_timed, ", without deterministic algorithms")):
        if checks is not None:
            findings = judge(equivalence, checks)
            found += [d.model_copy(update={"where": d.where + how}) for d in findings.deviations]
            left_out = sorted({*left_out, *findings.left_out})
            undecided += findings.undecided
    return Compared(found, left_out, undecided, power)


def nearest(certificate: Certificate) -> Deviation | None:
    """The deviation that took most of what is allowed; None where the reason says what failed, or
    where no deviation has a bound above 0."""
    found = [each for each in certificate.deviations if each.bound > 0]
    if certificate.status != "equivalent" or not found:
        return None
    return max(found, key=lambda each: each.measured / each.bound)


def in_short(certificate: Certificate) -> str:
    """The reason of a certificate in a line: of one that holds, what came nearest to its bound."""
    found = nearest(certificate)
    if found is None:
        return certificate.reason
    share = found.measured / found.bound
    return (
        f"{certificate.status}; nearest to its bound is {WORDS[found.quantity]}, {share:.0%} of it"
    )


def in_words(deviation: Deviation) -> str:
    """A deviation as a clause."""
    what = WORDS[deviation.quantity]
    if not deviation.measured:
        return f"{what} equal"
    return (
        f"{what} off by {deviation.measured:.1e} ({deviation.where}), {deviation.bound:.1e} allowed"
    )


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
