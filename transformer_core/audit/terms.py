"""Watches the numbers that are added up into a loss, and the values of losses."""

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from transformer_core.audit.losses import FOLLOWED_STEPS
from transformer_core.audit.relations import Notes, user_line
from transformer_core.tune.boundaries import replacing

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

ROUNDING = 5e-7  # of a sum in float32, relative
LEAST_VALUES = 4  # steps in which a number must be the same before that is worth a look
SUMS = ("__add__", "__radd__", "__iadd__", "__sub__", "__isub__", "add", "sub", "add_", "sub_")


class Terms:
    """Watches the terms of losses in one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch = watch
        self._terms: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        """Values of the operands of sums that have a gradient, one for each step.
        Keys: the line, the number of the sum in that line and step, and the side."""
        self._fixed: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
        """The same of those without one, with the gradient of their sum."""
        self._sums: dict[str, int] = defaultdict(int)  # sums of this step, by line
        self._losses: dict[int, list[float]] = defaultdict(list)
        """Values of the losses of each step, by their number in it."""
        self._left_out = 0  # losses without a number whose gradients the script has thrown away

    def install(self) -> None:
        for name in SUMS:
            replacing(Tensor, name)(self._sum)

    def _sum(self, original: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.watch.closely or not all(map(_is_number, (one, other))):
            return original(one, other, *args, **kwargs)
        # Before an operation in place changes the first.
        before = [(float(each.detach()), each.requires_grad) for each in (one, other)]
        found = original(one, other, *args, **kwargs)
        if found.grad_fn is not None:  # An optimizer adds to weights, which have none.
            place = user_line()
            number = self._sums[place]
            self._sums[place] += 1

            def note(gradient: Tensor) -> None:
                for side, (value, graded) in enumerate(before):
                    if graded:
                        self._terms[place, number, side].append(value)
                    else:
                        self._fixed[place, number, side].append((value, float(gradient)))

            found.register_hook(note)
        return found

    def boundary(self) -> None:
        self._sums.clear()
        if self.watch.steps >= FOLLOWED_STEPS:
            return
        lost = self.watch.losses.lost
        losses = [float(each) for each in self.watch.boundaries.losses if each.numel() == 1]
        self._left_out += sum(map(math.isnan, losses[:lost]))
        for number, loss in enumerate(losses[lost:]):
            self._losses[number].append(loss)

    def judge(self, found: Notes) -> None:
        """Notes terms and losses that are not finite, always zero, or always the same."""
        values = [value for each in self._losses.values() for value in each]
        if (bad := sum(map(math.isnan, values))) or self._left_out:
            count = len(values) + self._left_out
            found.found(
                "loss",
                "the loss",
                f"it is not a number (NaN) in {bad + self._left_out} of {count} backward passes"
                + ("" if bad else ", whose gradients the script throws away"),
                "look for 0 / 0, the logarithm or the root of 0, or a softmax over masked places only",
                sure=bad > 0,
            )
        if bad:
            return
        for (place, _, _), each in self._terms.items():
            self._judge(f"a term at {place}", each, found)
        for (place, _, _), pairs in self._fixed.items():
            terms, slopes = ({*each} for each in zip(*pairs, strict=True))
            # Where the gradient of the sum differs from step to step, it is the difference from a target.
            if len(pairs) >= LEAST_VALUES and len(terms) > 1 and len(slopes) == 1 and slopes != {0}:
                found.found(
                    "loss",
                    f"a term at {place}",
                    "it is added to the loss and differs from step to step, but has no gradient, so "
                    "nothing is learned from it",
                    "look for detach(), .data, no_grad() or grad() without create_graph=True in it; it may "
                    "also be a part that no weight can change, such as the entropy of a teacher",
                    sure=False,
                )
        for each in self._losses.values():
            self._judge("the loss", each, found)

    def _judge(self, where: str, values: list[float], found: Notes) -> None:
        # Sums of probabilities, for example, are equal up to rounding in float32.
        same = max(values) - min(values) <= ROUNDING * max(map(abs, values))
        if same and len(values) >= LEAST_VALUES:
            what = "exactly 0" if not values[0] else f"the same number, {values[0]:.6g},"
            found.found(
                "loss",
                where,
                f"it is {what} in each of {len(values)} steps, so nothing is learned from it",
                "look for a mask, a margin or an axis that leaves nothing of it, or for weights that "
                "never change",
                sure=False,
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim() and value.is_floating_point()
