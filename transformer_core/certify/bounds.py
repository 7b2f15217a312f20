"""Deviations of a variant from its reference in every quantity that its class compares, and their
bounds.

A bound follows from a measured floor (:mod:`transformer_core.certify.floors`): how far rounding alone
moves this tensor, at these weights and this batch, determined by a computation that shares no code
with the variant. The bounds of the class are ceilings.
"""

import math
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
from schemas.results.certificates import Checks, CourseFloor, TensorDistance
from schemas.results.runs import SpotCheck
from transformer_core.certify.dropout_bounds import judge_dropout, judge_moments
from transformer_core.certify.final_losses import compare_final_losses
from transformer_core.certify.floors import (
    ADRIFT,
    BLIND,
    COURSE_MARGIN,
    MARGIN,
    MEAN_ALONG_MARGIN,
    MEAN_MARGIN,
    NEGLIGIBLE,
    NORM,
    RATIO_SHARE,
    WIDEST,
    WIDEST_LOSS,
    allowed,
    of_adam,
    of_lengths,
    share_along,
    usual_floors,
)
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
    "gradient_mean": "mean error of a tensor's gradient",
    "gradient_mean_ratio": "mean norm of a tensor's gradient",
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
            found += _step_by_step(mine, theirs, None, 0.0, 0.0)
            found.append(_of_weights(weights, None, 0.0))
        case Tolerance(loss=loss, grad_norm=grad_norm, weights=bound):
            left_out = undetermined(theirs.floor)
            found += _step_by_step(mine, theirs, theirs.floor, loss, grad_norm)
            found.append(_of_weights(weights, theirs.floor, bound))
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
    floor = f" beside a floor of {deviation.floor:.1e}" if deviation.floor else ""
    return (
        f"{what} off by {deviation.measured:.1e} ({deviation.where}), "
        f"{deviation.bound:.1e} allowed{floor}"
    )


def _step_by_step(
    mine: SeedTrajectory,
    theirs: SeedTrajectory,
    floor: CourseFloor | None,
    loss: float,
    grad_norm: float,
) -> list[Deviation]:
    found = []
    for quantity, ours, expected, own, ceiling in (
        ("loss", mine.losses, theirs.losses, floor.loss if floor else 0.0, loss),
        (
            "grad_norm",
            mine.grad_norms,
            theirs.grad_norms,
            floor.grad_norm if floor else 0.0,
            grad_norm,
        ),
    ):
        apart = [_relative(a, b) for a, b in zip(ours, expected, strict=True)]
        step = int(np.argmax(apart))
        usual = NORM if quantity == "grad_norm" else 0.0
        # A ceiling below the floor would refuse the reference itself.
        widest = max(ceiling, 2 * own)
        bound = allowed(own, usual, widest, COURSE_MARGIN) if floor else ceiling
        found.append(_deviation(quantity, apart[step], bound, f"step {step + 1}", own))
    return found


def course_floor(one: SeedTrajectory, other: SeedTrajectory, weights: Weights) -> CourseFloor:
    """How far two trainings of the reference differ, the second from disturbed weights."""
    loss, grad_norm = (d.measured for d in _step_by_step(other, one, None, 0.0, 0.0))
    return CourseFloor(loss=loss, grad_norm=grad_norm, weights=changes_apart(weights))


def undetermined(floor: CourseFloor | None) -> list[str]:
    """Tensors that rounding alone decides, such as biases of keys: they add the same number to all
    scores of a query, which softmax cancels, and Adam turns the rounding of their gradient into
    full-sized updates."""
    return [] if floor is None else [n for n, apart in floor.weights.items() if apart > ADRIFT]


def _of_weights(weights: Weights, floor: CourseFloor | None, ceiling: float) -> Deviation:
    """The tensor of final weights that differs most for its bound."""
    skipped, own = undetermined(floor), {} if floor is None else floor.weights
    changes = {n: a for n, a in changes_apart(weights).items() if n not in skipped}
    usual = median(own.values()) if own else 0.0
    bounds = {
        name: allowed(own[name], usual, ceiling, least=of_adam(own[name]))
        if name in own
        else ceiling
        for name in changes
    }
    worst = max(changes, key=lambda n: changes[n] / bounds[n] if bounds[n] else changes[n])
    return _deviation("weights", changes[worst], bounds[worst], worst, own.get(worst, 0.0))


def _relative(value: float | None, expected: float | None) -> float:
    """Relative difference; 1 if only one of them is a number (a gradient that overflowed)."""
    if value is None or expected is None:
        return float(value is not expected)
    return abs(value - expected) / abs(expected) if expected else float(value != 0)


def _deviation(
    quantity: str, measured: float, bound: float, where: str, floor: float = 0.0
) -> Deviation:
    measured = measured if math.isfinite(measured) else 1e300
    return Deviation.model_validate(
        {"quantity": quantity, "measured": measured, "bound": bound, "where": where, "floor": floor}
    )


UPDATE = 0.001
"""Allowed error of an update of the timed run, beyond rounding."""
RATE = 1e-5
"""Allowed error of its learning rate."""
CLIPPED = 0.005
"""Allowed error of the norm after clipping: 16-bit gradients are rounded."""


@dataclass(frozen=True)
class Findings:
    """Results of a training's checks."""

    deviations: list[Deviation]
    left_out: list[str]
    undecided: list[str]
    """Reasons why the checks cannot decide; empty if they can."""


def judge(equivalence: Bitwise | Tolerance | Statistical, checks: Checks) -> Findings:
    """The deviations of ``checks`` against the bounds of the class."""
    reduced = not isinstance(equivalence, Tolerance)
    ceilings = equivalence if isinstance(equivalence, Tolerance) else Tolerance(kind="tolerance")
    # Where few bits leave little of a gradient, no ceiling can help.
    widest = math.inf if reduced else ceilings.gradient
    least_loss = WIDEST_LOSS if reduced else ceilings.loss
    gradients = determined(checks.gradients)
    left_out = sorted({g.tensor for g in checks.gradients} - {g.tensor for g in gradients})
    means = [g for g in checks.means if g.tensor not in left_out]
    found = [
        *_worst("gradient", gradients, lambda g: g.rounding, widest),
        *_worst("gradient_ratio", gradients, lambda g: g.rounding, widest, RATIO_SHARE),
        *_worst("gradient_mean", means, lambda g: g.rounding, WIDEST, margin=MEAN_MARGIN),
        *_worst("gradient_mean_ratio", means, lambda g: g.along, WIDEST, margin=MEAN_ALONG_MARGIN),
        *_worst("update", checks.updates, lambda u: u.rounding, math.inf),
        *_worst("update_ratio", checks.updates, lambda u: u.rounding, math.inf, RATIO_SHARE),
    ]
    lost = checks.not_resumed
    found.append(_deviation("resumed", float(len(lost)), 0.0, ", ".join(lost)))
    if (decoded := checks.decoding) is not None:
        bound = allowed(decoded.rounding, 0.0, WIDEST if reduced else ceilings.loss)
        found.append(
            _deviation("decoding", decoded.error, bound, "a token at a time", decoded.rounding)
        )
    still = checks.without_gradient
    found.append(_deviation("no_gradient", float(len(still)), 0.0, ", ".join(still[:3])))
    if checks.points:
        # Of few steps one may be rounded luckily.
        floor = max(point.rounding for point in checks.points)
        found += _validation(checks, floor, least_loss)
        apart = {p.step: abs(p.loss / p.expected_loss - 1) for p in checks.points}
        found.append(_at_worst("point_loss", apart, lambda step: (floor, 0.0), least_loss))
        # The norm used for clipping, against that of the whole gradient.
        usual = max(median(g.rounding for g in gradients) if gradients else 0.0, NORM)
        kinks = max((g.kinks for g in gradients), default=0.0)
        # Where a ReLU falls on the other side, a step's whole gradient is off by more than usual.
        own = {p.step: p.norm_rounding for p in checks.points}
        apart = {p.step: abs(p.norm / p.expected_norm - 1) for p in checks.points}
        ceiling = WIDEST if reduced else ceilings.grad_norm
        floors = {step: (max(floor, usual), kinks) for step, floor in own.items()}
        found.append(_at_worst("point_norm", apart, floors.__getitem__, ceiling))
    return Findings(found, left_out, list(_blind(checks)))


def determined(gradients: Sequence[TensorDistance]) -> list[TensorDistance]:
    """``gradients`` without those that rounding alone decides."""
    largest = dict.fromkeys({g.step for g in gradients}, 0.0)
    for g in gradients:
        largest[g.step] = max(largest[g.step], g.size)
    return [
        g
        for g in gradients
        if g.rounding <= BLIND and not 0 < g.size < NEGLIGIBLE * largest[g.step]
    ]


def _worst(
    quantity: str,
    tensors: Sequence[TensorDistance],
    floor_of: Callable[[TensorDistance], float],
    ceiling: float,
    share: float = 1.0,
    margin: float = MARGIN,
) -> Iterable[Deviation]:
    """The error, or the deviation of the norm, that is largest relative to its bound."""
    if not tensors:
        return
    usual = usual_floors((t.step, floor_of(t)) for t in tensors)
    ratio = quantity.endswith("_ratio")
    # Few numbers leave rounding few directions: their length then changes by more than a share.
    lengths = of_lengths((t.tensor, t.along) for t in tensors) if ratio else {}

    def bound_of(t: TensorDistance) -> float:
        own_share = max(share, share_along(t.elements)) if ratio else share
        own = max(own_share * floor_of(t), lengths.get(t.tensor, 0.0))
        return allowed(own, share * usual[t.step], share * ceiling, margin) + t.kinks

    def measured(t: TensorDistance) -> float:
        return abs(t.ratio - 1) if ratio else t.error

    worst = max(tensors, key=lambda t: measured(t) / bound_of(t))
    where = f"{worst.tensor}, step {worst.step}"
    if quantity.startswith("gradient_mean"):
        where = f"{worst.tensor}, all steps"
    floor = max(floor_of(worst), usual[worst.step])
    yield _deviation(quantity, measured(worst), bound_of(worst), where, floor)


def _at_worst(
    quantity: str,
    apart: Mapping[int, float],
    floors: Callable[[int], tuple[float, float]],
    ceiling: float,
) -> Deviation:
    """The step that is farthest off for its bound; ``floors`` gives its floor and its kinks."""

    def bound_of(step: int) -> float:
        floor, kinks = floors(step)
        return allowed(floor, 0.0, ceiling) + kinks

    step = max(apart, key=lambda step: apart[step] / bound_of(step))
    return _deviation(quantity, apart[step], bound_of(step), f"step {step}", floors(step)[0])


def _validation(checks: Checks, floor: float, ceiling: float) -> Iterable[Deviation]:
    """The validation loss, and modules that a validation left in evaluation mode."""
    if (seen := checks.validation) is None:
        return
    floor = max(seen.rounding, floor)
    apart, bound = abs(seen.loss / seen.expected_loss - 1), allowed(floor, 0.0, ceiling)
    yield _deviation("validation", apart, bound, "after the last step", floor)
    where = f"{seen.modes_changed} modules left in the wrong mode"
    yield _deviation("validation", float(seen.modes_changed), 0.0, where)


def _blind(checks: Checks) -> Iterable[str]:
    """Errors that the checks could not have detected."""
    if not checks.gradients:
        yield "no step had a gradient to compare"
    blind = [u.tensor for u in checks.updates if u.size and MARGIN * u.rounding >= BLIND]
    if blind:
        yield f"updates of {blind[0]} are too small beside the rounding of its weights to be seen"


def changes_apart(weights: Weights) -> dict[str, float]:
    """How far final weights are apart, by tensor: 2-norm of the difference over that of the
    reference's change during training.

    A tensor that only one of the runs has, or that has a different shape, differs by 1; so does one
    that the reference did not change, if it differs at all.
    """
    names = sorted(weights.run.keys() | weights.reference.keys())
    return {name: _change_apart(weights, name) for name in names}


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
