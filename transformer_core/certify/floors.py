"""Floors and bounds: two computations of one training may differ as far as the reference differs from
itself.

The floor is measured, tensor by tensor. The reference runs again with weights that differ in their last
place and with the rows of the batch in another order; for formats with fewer bits, with all products
rounded to the format. The bound is a multiple of the floor, up to a ceiling.
"""

import math
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor  # the jobs that judge certificates start without torch

MARGIN = 4.0
"""Allowed multiple of a floor. Two computations of one function have errors of the same size;
docs/certificates.md gives the largest ratio between them that was seen in healthy variants."""
RATIO_SHARE = 0.4
"""Bound on the ratio of norms, relative to that on the error: rounding changes the direction of a
gradient more than its length."""
FARTHEST = 2.75
"""Allowed part of an error along the gradient, in standard deviations. With n elements, one standard
deviation is 1 / sqrt(n) of the error, so with a few dozen elements the part may exceed RATIO_SHARE."""
MEAN_MARGIN, MEAN_ALONG_MARGIN = 4.5, 9.0
"""Allowed multiple of the floor of the mean error over steps, and of its part along the gradient; the
latter floor is a standard error."""
COURSE_MARGIN = 10.0
"""Allowed multiple for losses and norms along a training, whose floor comes from one other training."""
FEWEST = 5
"""Minimum number of steps for comparing their mean; with fewer, its floor is too uncertain."""
WEIGHTS_ONLY = 1.5
"""Factor on the margin if the floor of an unknown program was measured by changing only its weights:
the rounding of all intermediate results adds up to a few times as much."""
SMALLEST = 1e-5
"""Relative differences below this are rounding in any program in 32 bits. Gradients of normalizations,
which are sums over all tokens, were off by 7e-6 in the default study, and by 2e-5 with other threads and
half the batch, with a floor of 5e-7."""
NORM = 5e-5
"""The same for the norm of a whole gradient, a sum over all weights: up to 7e-5 were seen."""
NEGLIGIBLE = 1e-6
"""A gradient below this fraction of the largest tensor's is only rounding. An example is that of the
bias of keys in attention: it adds the same number to all scores of a query, which softmax cancels."""
BLIND = 0.5
"""A tensor with a floor above this proves nothing: it would pass even with the opposite sign."""
ADRIFT = 0.05
"""The same for final weights, relative to their change. It is lower because two trainings may by luck
share half of the change of a tensor that rounding alone decides, but never 95 % of it."""
WIDEST, WIDEST_LOSS = 0.25, 0.01
"""For formats with fewer bits, the ceiling of mean errors, norms and logits, and that of losses."""

NEAR_A_BOUND = 0.8
"""Share of a bound above which floors, results in 64 bits and kinks are computed. They take as long as
all other checks together."""


def allowed(
    floor: float,
    usual: float,
    ceiling: float,
    margin: float = MARGIN,
    least: float = 0.0,
    smallest: float = SMALLEST,
) -> float:
    """The bound that follows from the ``floor`` of a tensor. The ``usual`` floor of all tensors is the
    least that counts, because one tensor may have small rounding errors by luck; so is ``smallest``."""
    return min(max(margin * max(floor, usual, smallest), least), ceiling)


def of_loss(found: "Tensor", right: "Tensor") -> float:
    """The relative floor of a mean loss, given the ``right`` losses of its labels [b, t] and those
    ``found`` with other rounding errors.

    In one sum, errors of labels or sentences may cancel by luck. So the floor is at least the sum that
    they would have if they were independent.
    """
    apart = found - right
    of_sentences = apart.sum(1)
    sums = abs(float(of_sentences.sum())), float(of_sentences.norm()), float(apart.norm())
    return max(sums) / abs(float(right.sum()))


def of_lengths(along: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The floor of each tensor's norm, by name: the root mean square over all steps of the part of its
    rounding error ``along`` it. At a single step that part may be small by luck."""
    by_tensor: dict[str, list[float]] = {}
    for tensor, part in along:
        by_tensor.setdefault(tensor, []).append(part)
    return {
        tensor: math.sqrt(sum(part**2 for part in parts) / len(parts))
        for tensor, parts in by_tensor.items()
    }


def share_along(elements: int) -> float:
    """The share of the error of a tensor with so many ``elements`` that may be along its gradient."""
    return max(RATIO_SHARE, min(1.0, FARTHEST / math.sqrt(elements))) if elements else RATIO_SHARE


def usual_floors(floors: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The median floor of each step, given (step, floor) of every tensor."""
    by_step: dict[int, list[float]] = {}
    for step, floor in floors:
        by_step.setdefault(step, []).append(floor)
    return {step: median(found) for step, found in by_step.items()}


def of_adam(floor: float, margin: float = MARGIN, smallest: float = SMALLEST) -> float:
    """The least bound of weights that Adam moved: it divides a gradient by its own size, so an
    error in the gradient changes the weights by about its square root."""
    return margin / 3 * math.sqrt(max(floor, smallest))
