"""Deviations of a variant from its reference in every quantity that its class compares, and their
bounds.

The bound of a tensor's gradient or update is the larger of two numbers: the class's bound in 32
bits, and, if the class allows fewer bits, a multiple of the number format's own error in this
tensor, at these weights and this batch, determined by a computation that shares no code with the
variant.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from schemas.config.measurement import Bitwise, Statistical, Tolerance
from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from schemas.results import Certificate, Deviation, SeedTrajectory
from schemas.results.certificates import Checks, TensorDistance
from schemas.results.runs import SpotCheck
from transformer_core.certify.dropout_bounds import judge_dropout, judge_moments
from transformer_core.certify.final_losses import compare_final_losses
from transformer_core.common.digests import check

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Weights:
    """Final weights of two trainings, and initial weights of the reference."""

    run: Tensors
    reference: Tensors
    initial: Tensors


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
    "no_gradient": "tensors that some steps gave no gradient",
    "decoding": "logits of decoding",
    "validation": "validation",
    "timed_update": "update of a tensor in the timed run",
    "timed_rate": "learning rate of the timed run",
    "timed_clipping": "clipping in the timed run",
    "timed_replicas": "replicas in the timed run",
    "dropout": "dropout",
    "dropout_loss": "mean loss with dropout",
    "dropout_gradient": "mean gradient norm with dropout",
    "dropout_spread": "spread of the loss with dropout",
    "dropout_draws": "draws of dropout",
    "dropout_slope": "slope of the loss with dropout",
}
"""Quantities that deviations are measured in."""
Pairs = list[tuple[SeedTrajectory, SeedTrajectory]]
"""Trainings of the variant and of the reference, by seed."""


@dataclass
class Compared:
    """The contents of a certificate."""

    deviations: list[Deviation]
    """Every quantity that the class compares."""
    left_out: list[str]
    """Tensors not compared."""
    undecided: list[str]
    """Reasons why it cannot decide; empty if it can."""
    power: float | None
    """:attr:`schemas.results.Certificate.power`."""


def deviations_of(
    equivalence: Bitwise | Tolerance | Statistical, pairs: Pairs, weights: Weights
) -> Compared:
    """Compare a variant's trainings with those of the reference."""
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
    for checks, how in (
        (mine.checks, ""),
        (mine.as_timed, ", without deterministic algorithms"),
        (mine.replayed, ", with dropout"),
    ):
        if checks is not None:
            findings = judge(equivalence, checks)
            found += [d.model_copy(update={"where": d.where + how}) for d in findings.deviations]
            left_out = sorted({*left_out, *findings.left_out})
            undecided += findings.undecided
    return Compared(found, left_out, undecided, power)


def spot_deviations(
    checks: Sequence[SpotCheck], equivalence: Bitwise | Tolerance | Statistical
) -> Iterable[Deviation]:
    """The deviations of steps of the timed run that were checked in place: the worst of each."""
    update = equivalence.update if isinstance(equivalence, Tolerance) else UPDATE
    of: dict[str, tuple[Callable[[SpotCheck], float], float]] = {
        "timed_update": (lambda c: c.update, update),
        "timed_rate": (lambda c: c.rate, RATE),
        "timed_clipping": (lambda c: c.clipping, CLIPPED),
        "timed_replicas": (lambda c: c.replicas, 0.0),
    }
    if checks:
        for quantity, (measured, bound) in of.items():
            worst = max(checks, key=measured)
            where = f"step {worst.step} of the timed run"
            yield _deviation(quantity, measured(worst), bound, where)


def nearest(certificate: Certificate) -> Deviation | None:
    """The deviation closest to its bound; None if the reason says what failed, or if no
    deviation has a bound above 0."""
    found = [each for each in certificate.deviations if each.bound > 0]
    if certificate.status != "equivalent" or not found:
        return None
    return max(found, key=lambda each: each.measured / each.bound)


def in_short(certificate: Certificate) -> str:
    """The reason of a certificate in a line: if it holds, the quantity closest to its bound."""
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
    """Relative difference; 1 if only one of them is a number (a gradient that overflowed)."""
    if value is None or expected is None:
        return float(value is not expected)
    return abs(value - expected) / abs(expected) if expected else float(value != 0)


def _deviation(quantity: str, measured: float, bound: float, where: str) -> Deviation:
    measured = measured if math.isfinite(measured) else 1e300
    return Deviation.model_validate(
        {"quantity": quantity, "measured": measured, "bound": bound, "where": where}
    )


ROUNDING_FACTOR = 4.0
"""Allowed multiple of the format's error. Two computations in one format differ from the exact
one by errors of the same size; docs/certificates.md gives the largest factor seen between the
two for correct variants."""
RATIO_SHARE = 0.25
"""Bound on the ratio of norms, relative to that on the error: rounding rotates a gradient more
than it changes its length."""
UPDATE = 0.001
"""Allowed error of an update of the timed run, beyond rounding."""
RATE = 1e-5
"""Allowed error of its learning rate."""
CLIPPED = 0.005
"""Allowed error of the norm after clipping: 16-bit gradients are rounded."""
BLIND = 0.5
"""Bound above which a tensor that never changes would pass."""


@dataclass(frozen=True)
class Findings:
    """Results of a training's checks."""

    deviations: list[Deviation]
    left_out: list[str]
    undecided: list[str]
    """Reasons why the checks cannot decide; empty if they can."""


def judge(equivalence: Bitwise | Tolerance | Statistical, checks: Checks) -> Findings:
    """The deviations of ``checks`` against the bounds of the class."""
    allowed = equivalence if isinstance(equivalence, Tolerance) else Tolerance(kind="tolerance")
    factor = 0.0 if isinstance(equivalence, Tolerance) else ROUNDING_FACTOR
    left_out = sorted({g.tensor for g in checks.gradients if UNDETERMINED.search(g.tensor)})
    gradients = [g for g in checks.gradients if g.tensor not in left_out]
    usual = {
        step: median(g.rounding for g in gradients if g.step == step)
        for step in {g.step for g in gradients}
    }

    def of_gradient(g: TensorDistance) -> float:
        return max(allowed.gradient, factor * max(g.rounding, usual[g.step]))

    def of_update(u: TensorDistance) -> float:
        return max(allowed.update, ROUNDING_FACTOR * u.rounding)

    found = list(_worst("gradient", gradients, of_gradient))
    found += _worst("update", checks.updates, of_update)
    lost = checks.not_resumed
    found.append(_deviation("resumed", float(len(lost)), 0.0, ", ".join(lost)))
    if (decoded := checks.decoding) is not None:
        bound = max(allowed.loss, factor * decoded.rounding)
        found.append(_deviation("decoding", decoded.error, bound, "a token at a time"))
    still = checks.without_gradient
    found.append(_deviation("no_gradient", float(len(still)), 0.0, ", ".join(still[:3])))
    found += _validation(checks, allowed.loss, factor)
    if checks.points:
        found.append(_point_loss(checks, allowed.loss, factor))
        found.append(_point_norm(checks, gradients, allowed.grad_norm, factor))
    return Findings(found, left_out, list(_blind(checks, of_update)))


def _worst(
    quantity: str, tensors: Sequence[TensorDistance], bound_of: Callable[[TensorDistance], float]
) -> Iterable[Deviation]:
    """The largest error and the most deviating norm, each relative to its bound."""
    if not tensors:
        return
    for name, measured, share in (
        (quantity, lambda t: t.error, 1.0),
        (f"{quantity}_ratio", lambda t: abs(t.ratio - 1), RATIO_SHARE),
    ):
        bounds = [share * bound_of(t) + t.kinks for t in tensors]
        worst, bound = max(
            zip(tensors, bounds, strict=True), key=lambda pair: measured(pair[0]) / pair[1]
        )
        yield _deviation(name, measured(worst), bound, f"{worst.tensor}, step {worst.step}")


def _point_norm(
    checks: Checks, gradients: Sequence[TensorDistance], allowed: float, factor: float
) -> Deviation:
    """The norm used for clipping, against that of the whole gradient."""
    kinks = max((g.kinks for g in gradients), default=0.0)
    usual = median(g.rounding for g in gradients) if gradients else 0.0
    apart = {point.step: abs(point.norm / point.expected_norm - 1) for point in checks.points}
    step = max(apart, key=lambda step: apart[step])
    return _deviation(
        "point_norm", apart[step], max(allowed, factor * usual) + kinks, f"step {step}"
    )


def _point_loss(checks: Checks, allowed: float, factor: float) -> Deviation:
    bound = max(allowed, factor * max(point.rounding for point in checks.points))
    apart = {point.step: abs(point.loss / point.expected_loss - 1) for point in checks.points}
    step = max(apart, key=lambda step: apart[step])
    return _deviation("point_loss", apart[step], bound, f"step {step}")


def _validation(checks: Checks, allowed: float, factor: float) -> Iterable[Deviation]:
    """The validation loss, and modules that a validation left in evaluation mode."""
    if (seen := checks.validation) is None:
        return
    # Rounding errors may cancel by chance in a single loss.
    rounding = max([seen.rounding, *(point.rounding for point in checks.points)])
    apart = abs(seen.loss / seen.expected_loss - 1)
    yield _deviation("validation", apart, max(allowed, factor * rounding), "after the last step")
    where = f"{seen.modes_changed} modules left in the wrong mode"
    yield _deviation("validation", float(seen.modes_changed), 0.0, where)


def _blind(checks: Checks, bound_of: Callable[[TensorDistance], float]) -> Iterable[str]:
    """Errors that the checks could not have detected."""
    if not checks.gradients:
        yield "no step had a gradient to compare"
    blind = [u.tensor for u in checks.updates if u.size and bound_of(u) >= BLIND]
    if blind:
        yield f"updates of {blind[0]} are too small beside the rounding of its weights to be seen"


UNDETERMINED = re.compile(r"(^|\.)key\.bias$")
"""Key biases add the same number to all scores of a query, which softmax cancels: their gradient
is 0 up to rounding, and Adam turns that rounding into full-sized updates."""


@dataclass(frozen=True)
class Apart:
    """The tensor in which two trainings differ most."""

    deviation: float
    """2-norm of the difference over the 2-norm of the reference's change during training."""
    tensor: str
    left_out: list[str]
    """Tensors on which the loss does not depend."""


def largest_difference(weights: Weights, everything: bool) -> Apart:
    """The tensor that differs most; with ``everything``, including those without a gradient.

    A tensor that only one of the runs has, or that has a different shape, differs by 1; so does one
    that the reference did not change, if it differs at all.
    """
    names = sorted(weights.run.keys() | weights.reference.keys())
    left_out = [] if everything else [name for name in names if UNDETERMINED.search(name)]
    found = {name: _change_apart(weights, name) for name in names if name not in left_out}
    tensor = max(found, key=lambda name: found[name])
    return Apart(found[tensor], tensor, left_out)


def _change_apart(weights: Weights, name: str) -> float:
    mine, theirs = weights.run.get(name), weights.reference.get(name)
    if mine is None or theirs is None or mine.shape != theirs.shape:
        return 1.0
    apart = np.linalg.norm(mine.astype(np.float64) - theirs)
    changed = np.linalg.norm(theirs.astype(np.float64) - weights.initial[name])
    if changed == 0:
        return float(apart > 0)
    return float(apart / changed)


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file; ConfigError if it cannot be read."""
    check(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        remedy = f"make it again: snakemake --cores all {path}"
        problem = ConfigProblem(str(path), WHOLE_FILE, None, str(error), remedy)
        raise ConfigError([problem]) from None
