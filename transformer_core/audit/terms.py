"""Watches the numbers that are added up into a loss, and the values of losses."""

import functools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transformer_core.audit.losses import FOLLOWED_STEPS
from transformer_core.audit.relations import Notes, user_line
from transformer_core.tune.boundaries import replacing, transformed

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

ROUNDING = 5e-7  # of a sum in float32, relative
LEAST_VALUES = 4  # steps in which a number must be the same before that is worth a look
SUMS = ("__add__", "__radd__", "__iadd__", "__sub__", "__isub__", "add", "sub", "add_", "sub_")


@dataclass
class _Term:
    """One operand of a sum, at one line, over several steps."""

    values: list[float] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)  # gradients of the sum
    trains: bool = False  # whether the operand has ever required a gradient


class Terms:
    """Watches the terms of losses in one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch = watch
        self._terms: dict[tuple[str, int, int], _Term] = defaultdict(_Term)
        """By line, number of the sum in that line and step, and side."""
        self._sums: dict[str, int] = defaultdict(int)  # sums of this step, by line
        self._losses: dict[int, list[float]] = defaultdict(list)
        """Values of the losses of each step, by their number in it."""

    def install(self) -> None:
        for name in SUMS:
            replacing(Tensor, name)(functools.partial(self._sum, name))

    def _sum(
        self, name: str, original: Any, one: Any, other: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._are_numbers(one, other):
            return original(one, other, *args, **kwargs)
        # Before an operation in place changes the first.
        before = [(float(each.detach()), each.requires_grad) for each in (one, other)]
        found = original(one, other, *args, **kwargs)
        if not found.requires_grad:
            return found
        place = user_line()
        number = self._sums[place]
        self._sums[place] += 1
        terms = []
        for side, (value, trains) in enumerate(before):
            # A difference with a number that has no gradient is often the error of a prediction.
            if trains or "sub" not in name:
                term = self._terms[place, number, side]
                term.trains |= trains
                terms.append((term, value))

        def note(gradient: Tensor) -> None:
            for term, value in terms:
                term.values.append(value)
                term.slopes.append(float(gradient))

        found.register_hook(note)
        return found

    def _are_numbers(self, *given: Any) -> bool:
        if torch.compiler.is_compiling() or self.watch.steps >= FOLLOWED_STEPS:
            return False
        if self.watch.listening is not None or self.watch.backward_depth or transformed():
            return False
        return all(
            isinstance(each, Tensor) and not each.dim() and each.is_floating_point()
            for each in given
        )

    def boundary(self) -> None:
        self._sums.clear()
        if self.watch.steps >= FOLLOWED_STEPS:
            return
        for number, loss in enumerate(self.watch.boundaries.losses):
            if loss.numel() == 1:
                self._losses[number].append(float(loss))

    def judge(self, found: Notes) -> None:
        """Notes terms and losses that are not finite, always zero, always the same, or detached."""
        values = [value for each in self._losses.values() for value in each]
        if any(map(math.isnan, values)):
            found.found(
                "loss",
                "the loss",
                f"it is no number (NaN) in {sum(map(math.isnan, values))} of {len(values)} backward passes",
                "look for 0 / 0, the logarithm or the root of 0, or a softmax over masked places only",
            )
            return
        for (place, _, _), term in self._terms.items():
            if len(term.values) < LEAST_VALUES:
                continue
            if _is_constant(term.values) and term.trains:
                self._constant(f"a term at {place}", term.values, found)
            elif not term.trains and not _is_constant(term.values) and len({*term.slopes}) == 1:
                found.found(
                    "loss",
                    f"a term at {place}",
                    "it is added to the loss but has no gradient, so nothing is learned from it",
                    "look for detach(), item(), argmax() or no_grad() where it is computed",
                    sure=False,
                )
        for each in self._losses.values():
            if len(each) >= LEAST_VALUES and _is_constant(each):
                self._constant("the loss", each, found)

    def _constant(self, where: str, values: list[float], found: Notes) -> None:
        what = "exactly 0" if not values[0] else f"the same number, {values[0]:.6g},"
        found.found(
            "loss",
            where,
            f"it is {what} in each of {len(values)} steps, so nothing is learned from it",
            "look for a mask, a margin or an axis that leaves nothing of it, or for weights that never change",
            sure=False,
        )


def _is_constant(values: list[float]) -> bool:
    """Whether values are equal up to rounding in float32, such as sums of probabilities."""
    return max(values) - min(values) <= ROUNDING * max(map(abs, values))
