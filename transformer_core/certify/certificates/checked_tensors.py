"""The verdict on gradients and updates, tensor by tensor: what was measured, what is allowed.

A bound is the larger of two numbers: what the class allows in 32 bits, and, where the class allows
fewer bits, a multiple of the error that the number format was found to make in this very tensor,
at these weights and this batch, by a computation that shares no code with the variant.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from schemas.config.equivalence import Bitwise, Statistical, Tolerance
from schemas.results import Deviation
from schemas.results.checks import Checks, TensorDistance
from transformer_core.certify.certificates.weight_distance import UNDETERMINED

ROUNDING_FACTOR = 4.0
"""Times the error of the format that is allowed. Two computations of one format differ from the
exact one by errors of the same size; the largest factor between the two that healthy variants
showed is in docs/certificates.md."""
RATIO_SHARE = 0.25
"""Bound of the ratio of norms over that of the error: rounding turns a gradient more than it
changes its length."""
BLIND = 0.5
"""Bound above which a tensor that stands still would pass."""


@dataclass(frozen=True)
class Findings:
    """What the checks of a training say."""

    deviations: list[Deviation]
    left_out: list[str]
    undecided: list[str]
    """Why they cannot tell, where they cannot."""


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
    found += _validation(checks, allowed.loss, factor)
    if checks.points:
        found.append(_point_loss(checks, allowed.loss, factor))
        found.append(_point_norm(checks, gradients, allowed.grad_norm, factor))
    return Findings(found, left_out, list(_blind(checks, of_update)))


def _worst(
    quantity: str, tensors: Sequence[TensorDistance], bound_of: Callable[[TensorDistance], float]
) -> Iterable[Deviation]:
    """The largest error, and the norm that is farthest off, each over its bound."""
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
    """The norm by which the run clipped, against that of the whole gradient."""
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
    """The validation loss, and what a validation has left in evaluation."""
    if (seen := checks.validation) is None:
        return
    # Rounding may be lucky in one loss.
    rounding = max([seen.rounding, *(point.rounding for point in checks.points)])
    apart = abs(seen.loss / seen.expected_loss - 1)
    yield _deviation("validation", apart, max(allowed, factor * rounding), "after the last step")
    where = f"{seen.modes_changed} modules stay in another mode"
    yield _deviation("validation", float(seen.modes_changed), 0.0, where)


def _blind(checks: Checks, bound_of: Callable[[TensorDistance], float]) -> Iterable[str]:
    """What the checks could not have seen."""
    if not checks.gradients:
        yield "no step had a gradient to compare"
    blind = [u.tensor for u in checks.updates if u.size and bound_of(u) >= BLIND]
    if blind:
        yield f"updates of {blind[0]} are too small beside the rounding of its weights to be seen"


def _deviation(quantity: str, measured: float, bound: float, where: str) -> Deviation:
    measured = measured if math.isfinite(measured) else 1e300
    return Deviation.model_validate(
        {"quantity": quantity, "measured": measured, "bound": bound, "where": where}
    )
