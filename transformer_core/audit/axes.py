"""Watches changes of shape, and operations that broadcast: which numbers meet."""

import itertools
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transformer_core.audit.losses import FOLLOWED_STEPS
from transformer_core.audit.relations import called_by_script, user_line
from transformer_core.tune.boundaries import replacing, transformed

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

SKEWED = ("CatBackward", "ConstantPadNdBackward")
"""A matrix that was padded and is then viewed with exchanged sizes is skewed on purpose: relative
positions (Transformer-XL), sliding windows (Longformer)."""


class Axes:
    """Watches the axes of tensors in one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch, self.notes = watch, watch.found

    def install(self) -> None:
        for owner, name in ((Tensor, "view"), (Tensor, "reshape"), (torch, "reshape")):
            replacing(owner, name)(self._reshape)

    def _reshape(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(input, *args, **kwargs)
        if torch.compiler.is_compiling() or self.watch.steps >= FOLLOWED_STEPS:
            return found
        if not isinstance(found, Tensor) or found.dim() < 2 or input.dim() < 2:
            return found
        quiet = self.watch.listening is not None or self.watch.backward_depth or transformed()
        if quiet or found.dtype != input.dtype or not called_by_script():
            return found
        self.notes.holds("axes", "shapes that the script's code changes")
        why = crossed([*input.shape], [*found.shape])
        if why and not type(input.grad_fn).__name__.startswith(SKEWED):
            self.notes.found(
                "axes",
                user_line(),
                f"a view of {tuple(input.shape)} as {tuple(found.shape)} {why}",
                "move axes with transpose() or permute(), and merge or split neighbours only",
                sure=False,
            )
        return found


def crossed(before: list[int], after: list[int]) -> str:
    """What is wrong with a change of shape that keeps the order of the numbers; empty if axes are only
    split or merged with their neighbours."""
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
