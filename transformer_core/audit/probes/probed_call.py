"""A call of the model that probes repeat with changes."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from transformer_core.audit.relations import NO_TIME
from transformer_core.audit.replay import Call, Result, again, evaluating, gap, refused
from transformer_core.audit.watcher import Watcher

EXACT = 1e-13  # relative differences up to this one are rounding of 64 bits alone


class OutOfTimeError(Exception):
    """The time for repeated calls is over."""


def why(error: Exception) -> str:
    return NO_TIME if isinstance(error, OutOfTimeError) else refused(error)


class ProbedCall:
    """A call and its result, repeated until ``end``, a time of ``time.monotonic``. Findings go to ``notes``."""

    def __init__(
        self,
        call: Call,
        watcher: Watcher,
        outside: list[tuple[str, Tensor, Any]],
        end: float = math.inf,
    ) -> None:
        self.call, self.watcher, self.notes, self.end = call, watcher, watcher.found, end
        self.outside = outside
        """Losses that the script computed from the results of the call."""
        self.name = type(call.inner).__name__
        self.double = True
        # By name, as a handwritten one is no class of torch. A model of Keras does not know its layers,
        # but gets an argument in place of a mode.
        *_, mode_given = evaluating(call.inner, call.args, call.kwargs)
        self.evaluation = mode_given or any(
            "BatchNorm" in each.__name__ for p in call.inner.modules() for each in type(p).__mro__
        )
        self.base: Result  # of the call as it was; set by :meth:`repeat`
        self.outputs: list[Tensor]  # those of which the script took its logits; likewise
        self.mixed = False  # whether a sample changes the results of others

    def repeat(self) -> None:
        """Repeats the call as it was: in 64 bits, or in its own format if it does not run in these. Raises
        what the call raises in its own format."""
        try:
            self.base = self.again(graded=True)
        except Exception:
            self.double = False
            self.base = self.again(graded=True)
        self.outputs = self.base.outputs
        plain = self.again(double=False) if self.double and self.base.drew else self.base
        # Another format draws other noise for a latent variable, through which predictions see everything.
        pairs = zip(plain.outputs, self.base.outputs, strict=True)
        if len(self.call.outputs) == len(self.outputs) and all(gap(*pair) < 0.2 for pair in pairs):
            self.outputs = self.call.outputs

    def again(self, **changes: Any) -> Result:
        changes.setdefault("evaluation", self.evaluation)
        changes.setdefault("double", self.double)
        if time.monotonic() > self.end:
            raise OutOfTimeError
        return again(self.call, self.watcher, **changes)

    @property
    def still(self) -> float:
        """Relative differences of at most this size are only rounding."""
        return 1e-9 if self.double else 1e-4

    def with_other_embeddings(
        self, tokens: Tensor, change: Callable[[nn.Embedding, Tensor], Tensor]
    ) -> Result | None:
        """The result if ``change`` takes the place of what each embedding of these tokens returns; None if
        no embedding gets them."""
        heard = False

        def replace(part: nn.Embedding, args: Any, output: Tensor) -> Tensor | None:
            nonlocal heard
            if not args or args[0].shape != tokens.shape or not torch.equal(args[0], tokens):
                return None
            heard = True
            return change(part, output)

        parts = [part for part in self.call.inner.modules() if type(part) is nn.Embedding]
        handles = [part.register_forward_hook(replace) for part in parts]
        try:
            new = self.again()
        finally:
            for handle in handles:
                handle.remove()
        return new if heard else None

    def logits(self, result: Result) -> list[tuple[Tensor, Tensor]]:
        """Logits and targets of each loss: those inside the call, and those that the script took
        from its results."""
        found = [
            (logits, target)
            for _, logits, target in result.losses
            if isinstance(target, Tensor) and not target.is_floating_point()
        ]
        for _, logits, target in self.outside:
            if not isinstance(target, Tensor) or target.is_floating_point():
                continue
            for before, now in zip(self.outputs, result.outputs, strict=True):
                cut = _cut(before, logits)
                if cut is not None:
                    found.append((cut(now), target))
                    break
        return found

    def rows_of_tokens(
        self, tokens: Tensor, new: Result
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        """Of each loss with predictions for the places of ``tokens``: the logits before and after a
        change, the targets, and the places of a row."""
        for (old, target), (now, _) in zip(self.logits(self.base), self.logits(new), strict=True):
            if old.dim() == 2:
                length, rest = divmod(len(old), len(tokens))
                if not rest and 0 < length <= tokens.shape[1]:
                    yield old, now, target, length

    def same(self, relation: str, old: Tensor, now: Tensor, cause: str, remedy: str) -> None:
        """Notes predictions that are not the same before and after a change."""
        if (change := gap(now, old)) > self.still:
            self.notes.found(relation, self.name, cause, remedy, change, self.still)

    def left_out(self, targets: Tensor) -> Tensor:
        """Which of the targets the loss ignores."""
        return torch.isin(targets, targets.new_tensor([*self.watcher.losses.ignored] or [-100]))


def _cut(whole: Tensor, part: Tensor) -> Callable[[Tensor], Tensor] | None:
    """How the script took logits from a result: all of it, or all but some places at its beginning or
    end; as rows of classes. None if it did neither."""
    if whole.dim() < 2 or not part.numel():
        return None
    if whole.dim() == 2:
        if whole.shape == part.shape and gap(whole, part) < 0.2:
            return lambda t: t
        return None
    classes = whole.shape[-1]
    if part.dim() == 3 and part.shape[1] == classes:
        part = part.transpose(1, 2)
    if part.shape[-1] != classes or whole.dim() != 3:
        return None
    rows = part.reshape(-1, classes)
    found: list[tuple[float, int, Callable[[Tensor], Tensor]]] = []
    for axis, begin, end in itertools.product((1, 0), range(3), range(3)):

        def cut(t: Tensor, axis: int = axis, begin: int = begin, end: int = end) -> Tensor:
            there = slice(begin, t.shape[axis] - end)
            return (t[:, there] if axis else t[there]).reshape(-1, classes)

        if cut(whole).shape == rows.shape:
            found.append((gap(cut(whole), rows), len(found), cut))
    distance, _, closest = min(found, default=(math.inf, 0, None))
    return closest if distance < 0.2 else None
