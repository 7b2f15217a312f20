"""How far two computations of one training may differ: as far as the reference differs from itself.

That floor is measured, tensor by tensor: the reference once more from weights that are changed in
their last place, with the rows of the batch in another order; for formats with fewer bits, with all
products rounded to the format. A bound is a multiple of the floor, and never above its ceiling.
"""

import math
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor  # jobs that judge start without torch

MARGIN = 4.0
"""Allowed multiple of a floor. Two computations of one function differ from the exact one by errors
of the same size; docs/certificates.md gives the largest factor seen between the two for healthy
variants."""
RATIO_SHARE = 0.4
"""Bound on the ratio of norms, relative to that on the error: rounding rotates a gradient more
than it changes its length."""
FARTHEST = 2.75
"""The part of an error along one direction, in standard deviations: of n elements it is 1 / sqrt(n)
of the error on average, so that in a tensor of a few dozen it may be more than that share."""
MEAN_MARGIN, MEAN_ALONG_MARGIN = 4.5, 9.0
"""The same for the mean error over steps, and for its part along the gradient, whose floor is a
standard error."""
COURSE_MARGIN = 10.0
"""The same for losses and norms along a training, whose floor is a single other course."""
FEWEST = 5
"""Steps below which a mean is not compared: its floor would be known too badly."""
WEIGHTS_ONLY = 1.5
"""Factor on the margin where only weights were changed to measure the floor of a program whose
inside is unknown: rounding every intermediate result adds up to a few times as much."""
SMALLEST = 1e-5
"""Relative differences below this are rounding in any program of 32 bits: gradients of normalizations,
sums over all tokens, were 7e-6 off in the default study and 2e-5 with other threads and half the
batch, beside a floor of 5e-7."""
NORM = 5e-5
"""The same for the norm of a whole gradient, a sum over all weights; 7e-5 was seen there."""
NEGLIGIBLE = 1e-6
"""A gradient below this fraction of the largest tensor's is mere rounding, such as that of the bias
of keys in attention, which adds the same number to all scores of a query: softmax cancels it."""
BLIND = 0.5
"""Floor above which a tensor says nothing: another sign of all its numbers would pass."""
ADRIFT = 0.05
"""The same for final weights, relative to their change: half of the changes of a tensor that rounding
decides are common to two trainings by luck now and then, a twentieth is none."""
WIDEST, WIDEST_LOSS = 0.25, 0.01
"""Ceilings of mean errors, norms and logits for formats with fewer bits, and of their losses."""

NEAR_A_BOUND = 0.8
"""Share of a bound above which floors, 64 bits and kinks are determined: that takes as long as all else."""


def allowed(
    floor: float, usual: float, ceiling: float, margin: float = MARGIN, least: float = 0.0
) -> float:
    """The bound that follows from the ``floor`` of a tensor. Rounding may be lucky in one of them,
    so that none has less than the ``usual`` floor of all."""
    return min(max(margin * max(floor, usual, SMALLEST), least), ceiling)


def of_loss(found: "Tensor", right: "Tensor") -> float:
    """The floor of a mean loss, relative to it, given the losses of its labels [b, t] as ``found``
    by a computation that rounds otherwise, and the ``right`` ones.

    Errors of labels and of sentences may cancel in one sum by luck, and not in the next: the floor
    is never below what they would add up to if they were independent.
    """
    apart = found - right
    of_sentences = apart.sum(1)
    sums = abs(float(of_sentences.sum())), float(of_sentences.norm()), float(apart.norm())
    return max(sums) / abs(float(right.sum()))


def of_lengths(along: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The floor of a tensor's norm by name: the root mean square, over all steps, of the part of its
    rounding error ``along`` it. At one step that part may be small by luck."""
    by_tensor: dict[str, list[float]] = {}
    for tensor, part in along:
        by_tensor.setdefault(tensor, []).append(part)
    return {
        tensor: math.sqrt(sum(part**2 for part in parts) / len(parts))
        for tensor, parts in by_tensor.items()
    }


def share_along(elements: int) -> float:
    """The share of an error of so many elements that may be along the gradient."""
    return max(RATIO_SHARE, min(1.0, FARTHEST / math.sqrt(elements))) if elements else RATIO_SHARE


def usual_floors(floors: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The median of the floors of each step."""
    by_step: dict[int, list[float]] = {}
    for step, floor in floors:
        by_step.setdefault(step, []).append(floor)
    return {step: median(found) for step, found in by_step.items()}


def of_adam(floor: float, margin: float = MARGIN) -> float:
    """The least bound of weights that Adam moved: it divides a gradient by its own size, so that they
    feel rounding as its square root."""
    return margin / 3 * math.sqrt(max(floor, SMALLEST))
