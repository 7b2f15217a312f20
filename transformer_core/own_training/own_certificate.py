"""Whether a training with techniques is that of the user, from short trainings of both."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.config.equivalence import Statistical, Tolerance
from schemas.results.own_training import OwnCertificate, ShortTraining
from transformer_core.certify.final_losses import compare_final_losses

Tensors = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Short:
    """A short training: its record, and weights before and after with the first seed."""

    record: ShortTraining
    initial: Tensors
    final: Tensors


def certify(
    found: Short, own: Short, wide: Short | None, equivalence: Tolerance | Statistical
) -> OwnCertificate:
    """Compare with the user's ``own`` step in 32 bits, and with the same in 64 bits (``wide``)."""
    for mine, theirs in zip(found.record.initial_sha256, own.record.initial_sha256, strict=False):
        if mine != theirs:
            return OwnCertificate(
                word="different",
                reason="the first weights are others: let the function draw them from torch's "
                "generator, or from its seed, and from nothing else",
            )
    numbers = {
        "loss": _largest(found.record.losses[0], own.record.losses[0]),
        "weights": weight_distance(found, own),
        "rounding": None if wide is None else _times_rounding(found, own, wide),
    }
    if isinstance(equivalence, Statistical):
        word, reason = _same_course(found, own, equivalence)
    else:
        word, reason = _same_sums(found, own, equivalence, numbers)
    return OwnCertificate(word=word, reason=reason, **numbers)  # type: ignore[arg-type]


def _same_sums(
    found: Short, own: Short, bounds: Tolerance, numbers: Mapping[str, float | None]
) -> tuple[str, str]:
    norms = _largest(
        [norm if norm is not None else np.inf for norm in found.record.norms[0]],
        [norm if norm is not None else np.inf for norm in own.record.norms[0]],
    )
    parts = [
        ("loss", numbers["loss"], bounds.loss),
        ("norm of the gradient", norms, bounds.grad_norm),
        ("weights", numbers["weights"], bounds.weights),
    ]
    said = "; ".join(f"{name} {value:.1e} of at most {most:.0e}" for name, value, most in parts)
    same = all(value is not None and value <= most for _, value, most in parts)
    return ("same" if same else "different"), said


def _same_course(found: Short, own: Short, bounds: Statistical) -> tuple[str, str]:
    seeds = min(len(found.record.losses), len(own.record.losses))
    losses = compare_final_losses(
        found.record.losses[:seeds], own.record.losses[:seeds], bounds.loss
    )
    said = f"final loss {losses}"
    if losses.undecided:
        return "undecided", "; ".join(losses.undecided)
    same = losses.farthest <= bounds.loss
    return ("same" if same else "different"), f"{said}; at most {bounds.loss:.1e}"


def weight_distance(found: Short, own: Short) -> float:
    """Largest difference of a tensor of final weights, relative to what training changed in it
    (2-norms); infinite where names or shapes are others."""
    if found.final.keys() != own.final.keys():
        return float("1e12")
    farthest = 0.0
    for name, mine in found.final.items():
        theirs, first = (_wide(side[name]) for side in (own.final, own.initial))
        difference, changed = (
            float(np.linalg.norm(x)) for x in (_wide(mine) - theirs, theirs - first)
        )
        if difference:
            farthest = max(farthest, difference / changed if changed else 1e12)
    return min(farthest, 1e12)


def distance(found: Short, other: Short) -> float:
    """2-norm of the difference of all final weights, relative to what training changed in them."""
    pairs = [
        (_wide(found.final[n]), _wide(other.final[n]), _wide(other.initial[n])) for n in other.final
    ]
    difference = sum(float(np.sum((mine - theirs) ** 2)) for mine, theirs, _ in pairs)
    changed = sum(float(np.sum((theirs - first) ** 2)) for _, theirs, first in pairs)
    return float(np.sqrt(difference / changed)) if changed else 0.0


def _times_rounding(found: Short, own: Short, wide: Short) -> float | None:
    rounding = distance(own, wide)
    return min(distance(found, wide) / rounding, 1e12) if rounding else None


def _wide(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return values.astype(np.float64).ravel()


def _largest(mine: list[float], theirs: list[float]) -> float:
    """Largest relative difference."""
    a, b = np.array(mine), np.array(theirs)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 1e12
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1e-12)))
