"""Deviations of a variant from its reference, with their bounds, for every quantity that its class
of equivalence compares.

A bound follows from a measured floor (:mod:`transformer_core.certify.floors`): how far rounding alone
moves this tensor, for these weights and this batch. A computation that shares no code with the
variant measures the floor. The bounds that the class states are ceilings.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from schemas.config.measurement import Bitwise, Different, Statistical, Tolerance
from schemas.results import Certificate, Deviation, SeedTrajectory
from schemas.results.certificates import Checks, CourseFloor, DeviationOf, TensorDistance
from schemas.results.runs import SpotCheck
from transformer_core.certify.dropout_bounds import deviation, judge_dropout, judge_moments
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
from transformer_core.common.endings import damaged
from transformer_core.common.percent import percent

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Weights:
    """The final weights of two trainings, and the initial weights of the reference."""

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
"""The compared quantities, in words."""
AnyClass = Bitwise | Tolerance | Statistical | Different
Pairs = list[tuple[SeedTrajectory, SeedTrajectory]]
"""For each seed, the training of the variant and that of the reference."""


@dataclass
class Compared:
    """Deviations, and how far they can be relied on."""

    deviations: list[Deviation]
    left_out: list[str]
    """Tensors not compared."""
    undecided: list[str]
    """Reasons why the comparison cannot decide; empty if it can."""
    final_loss_undecided: bool = False
    """Whether the interval of the final losses is one of these reasons."""
    power: float | None = None
    """:attr:`schemas.results.Certificate.power`."""

    @property
    def failed(self) -> list[str]:
        """A clause for each deviation beyond its bound."""
        waits = {"final_loss"} if self.final_loss_undecided else set()
        return [in_words(d) for d in self.deviations if not (d.holds or d.quantity in waits)]


def deviations_of(
    equivalence: Bitwise | Tolerance | Statistical, pairs: Pairs, weights: Weights
) -> Compared:
    """Compare a variant's trainings with those of the reference."""
    mine, theirs = pairs[0]
    compared = Compared([], [], [])
    found, undecided = compared.deviations, compared.undecided
    match equivalence:
        case Statistical(loss=margin):
            runs, references = zip(*((m.losses, t.losses) for m, t in pairs), strict=True)
            outcome = compare_final_losses(runs, references, margin)
            where = f"interval over {len(pairs)} seeds: {outcome}"
            found.append(deviation("final_loss", outcome.farthest, margin, where))
            undecided += outcome.undecided
            compared.final_loss_undecided = bool(outcome.undecided)
            compared.power = outcome.power
            found += _of_constants(weights, theirs.floor)
        case Bitwise():
            found += _step_by_step(mine, theirs, None, 0.0, 0.0)
            found += _of_weights(weights, None, 0.0)
        case Tolerance(loss=loss, grad_norm=grad_norm, weights=bound):
            compared.left_out = undetermined(theirs.floor)
            found += _step_by_step(mine, theirs, theirs.floor, loss, grad_norm)
            of_weights = _of_weights(weights, theirs.floor, bound)
            found += of_weights
            if not of_weights:
                undecided.append("rounding alone decides all of its final weights")
    if mine.moments is not None and theirs.moments is not None:
        reduced = isinstance(equivalence, Statistical)
        found += judge_moments(mine.moments, theirs.moments, reduced)
    own = own_deviations(equivalence, [mine for mine, _ in pairs])
    compared.left_out = sorted({*compared.left_out, *own.left_out})
    found += own.deviations
    undecided += own.undecided
    if isinstance(equivalence, Statistical) and not compares_updates(mine):
        undecided.append("its updates were not compared: the rule of its optimizer is not known")
    return compared


def compares_updates(run: SeedTrajectory) -> bool:
    """Whether updates were compared with the rule of the optimizer, or nothing at all was compared."""
    return run.checks is None or bool(run.checks.updates)


def own_deviations(equivalence: AnyClass, runs: Sequence[SeedTrajectory]) -> Compared:
    """Deviations of a variant's trainings from what its own settings ask for, of the first one tensor
    by tensor; they need no reference."""
    mine, compared = runs[0], Compared([], [], [])
    found, undecided = compared.deviations, compared.undecided
    spread = [run.replica_differences for run in runs if run.replica_differences is not None]
    if spread:
        largest = [max(of_ranks) for of_ranks in zip(*spread, strict=True)]
        step = int(np.argmax(largest))
        found.append(deviation("replicas", largest[step], 0.0, f"step {step + 1}"))
    if mine.dropout is not None:
        found += judge_dropout(mine.dropout, mine.dropout_probability)
    if mine.checks is None:
        undecided.append("its gradients were not compared tensor by tensor")
        return compared
    dropped = mine.dropout_probability > 0 and mine.not_replayed is None
    for checks, how in (
        (mine.checks, ""),
        (mine.as_timed, ", without deterministic algorithms"),
        (mine.after_resuming, ", after resuming" + dropped * ", with dropout"),
    ):
        if checks is not None:
            more = judge(equivalence, checks)
            found += [d.model_copy(update={"where": d.where + how}) for d in more.deviations]
            compared.left_out = sorted({*compared.left_out, *more.left_out})
            undecided += more.undecided
    return compared


def spot_deviations(checks: Sequence[SpotCheck], equivalence: AnyClass) -> list[Deviation]:
    """For each quantity checked during the timed run, the largest deviation of any step."""
    update = equivalence.update if isinstance(equivalence, Tolerance) else UPDATE
    bounds: dict[DeviationOf, tuple[str, float]] = {
        "timed_update": ("update", update),
        "timed_rate": ("rate", RATE),
        "timed_clipping": ("clipping", CLIPPED),
        "timed_replicas": ("replicas", 0.0),
    }
    found = []
    for quantity, (field, bound) in bounds.items() if checks else ():
        worst = max(checks, key=attrgetter(field))
        where = f"step {worst.step} of the timed run"
        found.append(deviation(quantity, getattr(worst, field), bound, where))
    return found


def nearest(certificate: Certificate) -> Deviation | None:
    """The deviation closest to its bound; None unless the certificate holds and has a deviation
    with a bound above 0."""
    found = [each for each in certificate.deviations if each.bound > 0]
    if certificate.status != "equivalent" or not found:
        return None
    return max(found, key=lambda each: each.measured / each.bound)


def in_short(certificate: Certificate) -> str:
    """The reason of a certificate in one line; if it holds, the quantity closest to its bound."""
    found = nearest(certificate)
    if found is None:
        return certificate.reason
    share = percent(found.measured / found.bound, 0)
    return f"{certificate.status}; nearest to its bound is {WORDS[found.quantity]}, {share} of it"


def in_words(found: Deviation) -> str:
    """A deviation as a clause."""
    what = WORDS[found.quantity]
    if not found.measured:
        return f"{what} equal"
    floor = f" with a floor of {found.floor:.1e}" if found.floor else ""
    allowed_here = f"{found.bound:.1e} allowed{floor}"
    return f"{what} off by {found.measured:.1e} ({found.where}), {allowed_here}"


def _step_by_step(
    mine: SeedTrajectory,
    theirs: SeedTrajectory,
    floor: CourseFloor | None,
    loss: float,
    grad_norm: float,
) -> list[Deviation]:
    of_loss, of_norm = (floor.loss, floor.grad_norm) if floor else (0.0, 0.0)
    if floor and mine.checks is not None:
        # Ranks with a part of each tensor round its norm less than the reference.
        of_norm = max([of_norm, *(point.norm_rounding for point in mine.checks.points)])
    norms = mine.grad_norms, theirs.grad_norms
    rows: tuple[tuple[DeviationOf, Any, Any, float, float, float], ...] = (
        ("loss", mine.losses, theirs.losses, of_loss, 0.0, loss),
        ("grad_norm", *norms, of_norm, NORM, grad_norm),
    )
    found = []
    for quantity, ours, expected, own, usual, ceiling in rows:
        apart = [_relative(a, b) for a, b in zip(ours, expected, strict=True)]
        step = int(np.argmax(apart))
        # A ceiling below the floor would refuse the reference itself.
        widest = max(ceiling, 2 * own)
        bound = allowed(own, usual, widest, COURSE_MARGIN) if floor else ceiling
        found.append(deviation(quantity, apart[step], bound, f"step {step + 1}", own))
    return found


def course_floor(one: SeedTrajectory, other: SeedTrajectory, weights: Weights) -> CourseFloor:
    """How far two trainings of the reference differ; the second starts from disturbed weights."""
    loss, grad_norm = (d.measured for d in _step_by_step(other, one, None, 0.0, 0.0))
    return CourseFloor(loss=loss, grad_norm=grad_norm, weights=changes_apart(weights))


def undetermined(floor: CourseFloor | None) -> list[str]:
    """The tensors that rounding alone decides, such as biases of keys: they add the same number to
    all scores of a query, softmax cancels it, and Adam turns the rounding error of their gradient
    into full-sized updates."""
    return [] if floor is None else [n for n, apart in floor.weights.items() if apart > ADRIFT]


def _of_weights(weights: Weights, floor: CourseFloor | None, ceiling: float) -> list[Deviation]:
    """The deviation of the tensor of final weights that differs most relative to its bound; none if
    rounding alone decides all tensors."""
    skipped, own = undetermined(floor), {} if floor is None else floor.weights
    changes = {n: a for n, a in changes_apart(weights).items() if n not in skipped}
    if not changes:
        return []
    # Frozen weights and constant buffers have none.
    usual = median([floor for floor in own.values() if floor] or [0.0])
    bounds = {
        name: allowed(own[name], usual, ceiling, least=of_adam(own[name]))
        if name in own
        else ceiling
        for name in changes
    }
    worst = max(changes, key=lambda n: changes[n] / bounds[n] if bounds[n] else changes[n])
    return [deviation("weights", changes[worst], bounds[worst], worst, own.get(worst, 0.0))]


def _of_constants(weights: Weights, floor: CourseFloor | None) -> Iterable[Deviation]:
    """The tensors that differ although no step of the reference changes them, such as frozen weights,
    which a run may have rounded to bfloat16 before its first step."""
    for name, own in ({} if floor is None else floor.weights).items():
        constant, mine = weights.reference[name], weights.run.get(name, ())
        fixed = own == 0 and np.array_equal(constant, weights.initial[name])
        if fixed and not any(np.array_equal(mine, x) for x in (constant, _to_bf16(constant))):
            yield deviation("weights", 1.0, 0.0, name)


def _to_bf16(x: NDArray[Any]) -> NDArray[Any]:
    """``x`` rounded to the nearest bfloat16 if it has 32 bits, in its own format."""
    if x.dtype != np.float32:
        return x
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def _relative(value: float | None, expected: float | None) -> float:
    """Relative difference; 1 if only one side is a number (the other's gradient overflowed)."""
    if value is None or expected is None:
        return float(value is not expected)
    return abs(value - expected) / abs(expected) if expected else float(value != 0)


UPDATE = 0.001
"""Allowed error of an update of the timed run, beyond rounding."""
RATE = 1e-5
"""Allowed error of its learning rate."""
CLIPPED = 0.005
"""Allowed error of the norm after clipping: 16-bit gradients are rounded."""


def judge(equivalence: AnyClass, checks: Checks) -> Compared:
    """The deviations of ``checks`` against the bounds of the class."""
    reduced = not isinstance(equivalence, Tolerance)
    ceilings = equivalence if isinstance(equivalence, Tolerance) else Tolerance(kind="tolerance")
    # With few bits little of a gradient may remain, so no ceiling would be right.
    widest = math.inf if reduced else ceilings.gradient
    least_loss = WIDEST_LOSS if reduced else ceilings.loss
    gradients = determined(checks.gradients)
    left_out = sorted({g.tensor for g in checks.gradients} - {g.tensor for g in gradients})
    means = [g for g in checks.means if g.tensor not in left_out]
    found = [
        *_worst("gradient", gradients, widest),
        *_worst("gradient_ratio", gradients, widest, RATIO_SHARE),
        *_worst("gradient_mean", means, WIDEST, margin=MEAN_MARGIN),
        *_worst("gradient_mean_ratio", means, WIDEST, margin=MEAN_ALONG_MARGIN, floor="along"),
        *_worst("update", checks.updates, math.inf),
        *_worst("update_ratio", checks.updates, math.inf, RATIO_SHARE),
    ]
    lost = checks.not_resumed
    found.append(deviation("resumed", float(len(lost)), 0.0, ", ".join(lost)))
    if (decoded := checks.decoding) is not None:
        floor = decoded.rounding
        bound = allowed(floor, 0.0, WIDEST if reduced else ceilings.loss)
        found.append(
            deviation("decoding", decoded.error, bound, "a token at a time, with padding", floor)
        )
    still = checks.without_gradient
    found.append(deviation("no_gradient", float(len(still)), 0.0, ", ".join(still[:3])))
    # With few steps, one of them may be rounded luckily.
    floor = max((point.rounding for point in checks.points), default=0.0)
    found += _validation(checks, floor, least_loss)
    if checks.points:
        apart = {p.step: abs(p.loss / p.expected_loss - 1) for p in checks.points}
        floors = dict.fromkeys(apart, floor)
        found.append(_at_worst("point_loss", apart, floors, 0.0, least_loss))
        # The norm used for clipping, against that of the whole gradient.
        usual = max(median(g.rounding for g in gradients) if gradients else 0.0, NORM)
        kinks = max((g.kinks for g in gradients), default=0.0)
        # If a ReLU falls on the other side, a step's whole gradient is off by more than usual.
        floors = {p.step: max(p.norm_rounding, usual) for p in checks.points}
        apart = {p.step: abs(p.norm / p.expected_norm - 1) for p in checks.points}
        # A ceiling below the floor would refuse what torch's kernel computes.
        ceiling = max(WIDEST if reduced else ceilings.grad_norm, 2 * max(floors.values()))
        found.append(_at_worst("point_norm", apart, floors, kinks, ceiling))
    return Compared(found, left_out, list(_blind(checks)))


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
    quantity: DeviationOf,
    tensors: Sequence[TensorDistance],
    ceiling: float,
    share: float = 1.0,
    margin: float = MARGIN,
    floor: Literal["rounding", "along"] = "rounding",
) -> Iterable[Deviation]:
    """The error, or the deviation of the norm, that is largest relative to its bound."""
    if not tensors:
        return
    floor_of: Callable[[TensorDistance], float] = attrgetter(floor)
    usual = usual_floors((t.step, floor_of(t)) for t in tensors)
    ratio = quantity.endswith("_ratio")
    # In a small tensor rounding has few directions: its length may change by more than this share.
    lengths = of_lengths((t.tensor, t.along) for t in tensors) if ratio else {}

    def bound_of(t: TensorDistance) -> float:
        own_share = max(share, share_along(t.elements))
        own = max(own_share * floor_of(t), lengths.get(t.tensor, 0.0))
        return allowed(own, share * usual[t.step], share * ceiling, margin) + t.kinks

    def measured(t: TensorDistance) -> float:
        return abs(t.ratio - 1) if ratio else t.error

    worst = max(tensors, key=lambda t: measured(t) / bound_of(t))
    where = f"{worst.tensor}, step {worst.step}"
    if quantity.startswith("gradient_mean"):
        where = f"{worst.tensor}, all steps"
    own_floor = max(floor_of(worst), usual[worst.step])
    yield deviation(quantity, measured(worst), bound_of(worst), where, own_floor)


def _at_worst(
    quantity: DeviationOf,
    apart: Mapping[int, float],
    floors: Mapping[int, float],
    kinks: float,
    ceiling: float,
) -> Deviation:
    """The deviation of the step that is farthest off relative to its bound."""
    bounds = {step: allowed(floor, 0.0, ceiling) + kinks for step, floor in floors.items()}
    step = max(apart, key=lambda step: apart[step] / bounds[step])
    return deviation(quantity, apart[step], bounds[step], f"step {step}", floors[step])


def _validation(checks: Checks, floor: float, ceiling: float) -> Iterable[Deviation]:
    """The deviation of the validation loss, and the modules that validation left in the wrong
    mode."""
    if (seen := checks.validation) is None:
        return
    floor = max(seen.rounding, floor)
    apart, bound = abs(seen.loss / seen.expected_loss - 1), allowed(floor, 0.0, ceiling)
    yield deviation("validation", apart, bound, "after the last step", floor)
    where = f"{seen.modes_changed} modules in the wrong mode"
    yield deviation("validation", float(seen.modes_changed), 0.0, where)


def _blind(checks: Checks) -> Iterable[str]:
    """Errors that the checks could not have detected."""
    if not determined(checks.gradients):
        yield "no step had a gradient to compare"
    blind = [u.tensor for u in checks.updates if u.size and MARGIN * u.rounding >= BLIND]
    if blind:
        yield f"updates of {blind[0]} are too small relative to the rounding of its weights"


def changes_apart(weights: Weights) -> dict[str, float]:
    """How far final weights are apart, by tensor: the 2-norm of the difference over that of the
    reference's change during training.

    The result is 0 for equal tensors, even with infinite elements, like some masks; 1 for one that the
    reference did not change, if it differs at all; 1e300, which no bound allows, for one that is missing
    from one run, has another shape, or differs and is not finite.
    """
    found = {}
    for name in sorted(weights.run.keys() | weights.reference.keys()):
        mine, theirs = weights.run.get(name), weights.reference.get(name)
        found[name] = 1e300
        if mine is None or theirs is None or mine.shape != theirs.shape:
            continue
        if np.array_equal(mine, theirs):
            found[name] = 0.0
            continue
        wide = np.result_type(theirs, np.float64)  # 64 bits, also for complex numbers
        with np.errstate(invalid="ignore"):
            apart = np.linalg.norm(mine.astype(wide) - theirs)
            changed = np.linalg.norm(theirs.astype(wide) - weights.initial[name])
        if math.isfinite(apart):
            found[name] = float(apart / changed) if changed else 1.0
    return found


def read_tensors(path: Path) -> Tensors:
    """The tensors in a safetensors file; ConfigError if it cannot be read."""
    check(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
