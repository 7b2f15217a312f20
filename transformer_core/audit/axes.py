"""Watches changes of shape, and operations that broadcast: which numbers meet."""

import itertools
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from transformer_core.audit.relations import called_by_script, user_line
from transformer_core.tune.boundaries import replacing

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

NEAR = 1e-3
SKEWED = ("CatBackward", "ConstantPadNdBackward")
"""A matrix that was padded and is then viewed with exchanged sizes is skewed on purpose: relative
positions (Transformer-XL), sliding windows (Longformer). Without gradients, this cannot be told."""


class Axes:
    """Watches the axes of tensors in one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch, self.notes = watch, watch.found
        self._shares: Any = WeakIdKeyDictionary()
        """Products with weights that sum to 1 along an axis: this axis, counted from the end."""
        self._merged: set[tuple[int, int]] = set()
        """Sizes of the first axis before and after a view has merged a part of the next one into it."""

    def install(self) -> None:
        products = ("matmul", "bmm")
        watched: list[tuple[Any, str, Any]] = [
            (Tensor, "view", self._reshape),
            *((owner, "reshape", self._reshape) for owner in (torch, Tensor)),
            *((owner, name, self._product) for owner in (torch, Tensor) for name in products),
            (Tensor, "__matmul__", self._product),
            *((Tensor, name, self._weighted) for name in ("mul", "__mul__", "__rmul__")),
            *((owner, "sum", self._sum) for owner in (torch, Tensor)),
        ]
        for owner, name, function in watched:
            replacing(owner, name)(function)

    def _watches(self, *given: Any) -> bool:
        return self.watch.closely and all(
            isinstance(each, Tensor) and each.dim() > 1 for each in given
        )

    def _product(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes weights that sum to 1, but along another axis than the one that is added up."""
        found = original(*args, **kwargs)
        one, other = [*args, *kwargs.values()][:2]
        if (
            self._watches(one, other)
            and one.requires_grad
            and other.requires_grad
            and called_by_script()
        ):
            axis = _axis_of_shares(one)
            if axis not in (None, -1):
                self._mixed(axis, -1)
        return found

    def _weighted(self, original: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(one, other, *args, **kwargs)
        if not self._watches(one, other) or not called_by_script():
            return found
        for weights, values in ((one, other), (other, one)):
            column = weights.dim() == values.dim() and weights.shape[-1] == 1 < values.shape[-1]
            if column and weights.requires_grad and (axis := _axis_of_shares(weights)) is not None:
                self._shares[found] = axis
        return found

    def _sum(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(input, *args, **kwargs)
        axis = kwargs.get("dim", args[0] if args else None)
        if self._watches(input) and isinstance(axis, int) and input in self._shares:
            summed = axis if axis < 0 else axis - input.dim()
            if self._shares[input] != summed != -1:
                self._mixed(self._shares[input], summed)
        return found

    def _mixed(self, axis: int, summed: int) -> None:
        self.notes.found(
            "axes",
            user_line(),
            f"weights that sum to 1 along axis {axis} are added up along axis {summed}: the result is no "
            "weighted mean",
            f"take the softmax along axis {summed}",
            sure=False,  # a soft assignment to clusters does this on purpose
        )

    def _reshape(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(input, *args, **kwargs)
        if not self._watches(input, found) or found.dtype != input.dtype or not called_by_script():
            return found
        self.notes.holds("axes", "shapes that the script's code changes")
        before, after = [*input.shape], [*found.shape]
        if (after[0], before[0]) in self._merged:  # as heads go back to their samples
            before[:1] = [after[0], before[0] // after[0]]
        why = crossed(before, after)
        if not why and 0 < before[0] < after[0] and after[0] % before[0] == 0:
            self._merged.add((before[0], after[0]))
        skewed = type(input.grad_fn).__name__.startswith(SKEWED) or not torch.is_grad_enabled()
        if why and not skewed:
            self.notes.found(
                "axes",
                user_line(),
                f"a view of {tuple(input.shape)} as {tuple(found.shape)} {why}",
                "move axes with transpose() or permute(), and merge or split neighbours only",
                sure=False,
            )
        return found


def _axis_of_shares(tensor: Tensor) -> int | None:
    """The last axis along which numbers sum to 1, from the end; None if there is none."""
    given = tensor.detach()
    if not given.numel() or float(given.min()) < 0 or float(given.max()) > 1 + NEAR:
        return None
    for axis in range(-1, -1 - given.dim(), -1):
        if given.shape[axis] > 1 and bool(((given.sum(axis) - 1).abs() < NEAR).all()):
            return axis
    return None


def crossed(before: list[int], after: list[int]) -> str:
    """Says how a change of shape that keeps the order of the numbers mixes axes; empty if it only splits them or
    merges neighbours."""
    for old, new in _blocks([n for n in before if n > 1], [n for n in after if n > 1]):
        if len(old) < 2 or len(new) < 2:
            continue
        cuts = sorted({*_cuts(old), *_cuts(new)})
        if any(b % a for a, b in itertools.pairwise(cuts)):
            return "cuts across its axes: each new row has numbers of several old ones"
        kept = Counter(old) & Counter(new)
        left = [*(Counter(old) - kept).elements()], [*(Counter(new) - kept).elements()]
        # All axes but at most one, which is split, or two, which are merged.
        if kept and min(map(len, left)) <= 1 and max(map(len, left)) <= 2:
            return "gives its axes another order, but leaves the numbers where they are"
    return ""


def _cuts(sizes: list[int]) -> list[int]:
    return [prod(sizes[: n + 1]) for n in range(len(sizes))]


def _blocks(before: list[int], after: list[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of neighbouring axes with as many numbers before as after."""
    both = sorted({*_cuts(before)} & {*_cuts(after)})
    found, begin = [], 1
    for end in both:
        groups = []
        for sizes in (before, after):
            cuts = _cuts(sizes)
            groups.append([n for n, cut in zip(sizes, cuts, strict=True) if begin < cut <= end])
        found.append((groups[0], groups[1]))
        begin = end
    return found
