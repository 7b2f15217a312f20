"""Every update of a training beside what its optimizer's rule should have made of its gradients."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.config.run_spec import RunSpec
from schemas.results.checks import TensorDistance
from transformer_core.certify.trajectory.independent.eight_bit_rounding import rounded
from transformer_core.certify.trajectory.independent.expected_updates import (
    ExpectedUpdates,
    expected_rate,
)
from transformer_core.certify.trajectory.independent.number_formats import to_bf16
from transformer_core.training.assemble import Setup
from transformer_core.training.optimization.master_weights import masters_of

SINGLE_UNIT = 2.0**-24
"""Unit round-off of 32 bits: of what a sum of weight and change loses at the least."""

UNIT = {torch.float32: SINGLE_UNIT, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-9}
"""Unit round-off of the formats in which weights are kept."""

Tensors = Mapping[str, Tensor]
Numbers = NDArray[np.float64]


def unit_of(setup: Setup, own: bool) -> float:
    """The unit round-off of the weights that the optimizer of ``setup`` keeps. Of the project's
    ``own`` models these have 32 bits, whatever a run has made of them; users' may have fewer."""
    if own:
        return SINGLE_UNIT
    masters = masters_of(setup.optimizer)
    return max(UNIT.get(masters.get(p, p).dtype, 0.0) for p in setup.model.parameters())


class CheckedUpdates:
    """Compares the change of all trained tensors at every step; ``unit`` is the unit round-off of
    the format in which weights are kept.

    All tensors are one vector: a step of many small ones costs a few operations.
    """

    def __init__(self, spec: RunSpec, initial: Tensors, trained: set[str], unit: float) -> None:
        self.spec, self.unit = spec, unit
        self.expected = ExpectedUpdates(spec.training.optimizer.rule)
        self.names = [name for name in initial if name in trained]
        self.sizes = [initial[name].numel() for name in self.names]
        self.before = self._vector(initial)
        self.rounded = to_bf16(self.before)
        self.worst: dict[tuple[str, int], TensorDistance] = {}

    def done(self, step: int, after: Tensors, gradients: Tensors | None) -> None:
        """Compare ``step``, which led to the weights ``after``; it should have changed nothing
        where there are no ``gradients``, because they had overflowed."""
        before, self.before = self.before, self._vector(after)
        change = torch.zeros_like(before)
        if gradients is not None:
            training, width = self.spec.training, self.spec.model.d_model
            rate = expected_rate(training.schedule, step, training.steps, width)
            change = self.expected.next(before, self._vector(gradients), rate)
        lost = self.unit * self._norms(before)
        self._compare("", step, lost, self.before - before, change)

    def rounds(self, step: int, used: Tensors) -> None:
        """Compare the change of the weights of 8 bits that the next step computes with: after every
        update they must be those of 32 bits, rounded anew to the nearest."""
        before, self.rounded = self.rounded, to_bf16(self.before)
        nothing = np.zeros(len(self.names))
        found, expected = self._vector(used) - before, self.rounded - before
        self._compare(", rounded", step, nothing, found, expected)

    def keeps(self, step: int, first: Tensors, second: Tensors) -> None:
        """Compare the moments of 8 bits that the optimizer keeps after ``step`` with those that it
        should, and go on from what it keeps: the next update follows from that."""
        kept = self._vector(first), self._vector(second)
        right = self.expected.first, self.expected.second
        for which, mine, moments in zip(("first", "second"), kept, right, strict=True):
            assert moments is not None, "a step has been done"
            emulated = rounded(moments, self.sizes, signed=which == "first")
            rounding = self._norms(emulated - moments)
            self._compare(f", {which} moment", step, rounding, mine, moments)
        self.expected.first, self.expected.second = kept

    def _compare(
        self, what: str, step: int, rounding: Numbers, found: Tensor, expected: Tensor
    ) -> None:
        """Keep of every tensor what is farthest off, ``rounding`` (2-norms) considered."""
        own, size = self._norms(found), self._norms(expected)
        lost = ~np.isfinite(own)
        product = np.where(lost, 0.0, self._products(found, expected))
        # What is not finite is as far off as no change.
        apart = np.where(lost, size, self._norms(found - expected))
        own = np.where(lost, 0.0, own)
        moved = (apart > 0).astype(float)
        still, safe = size == 0, np.where(size == 0, 1.0, size)
        error = np.where(still, moved, apart / safe)
        ratio = np.where(still, 1 + moved, own / safe)
        cosine = product / (safe * np.where(own == 0, 1.0, own))
        cosine = np.where(still, 1 - moved, cosine)
        rounding = np.where(still, 0.0, rounding / safe)
        for at, name in enumerate(self.names):
            known = self.worst.get((what, at))
            if known is None or error[at] / (rounding[at] + SINGLE_UNIT) > _excess(known):
                self.worst[what, at] = TensorDistance(
                    tensor=name + what,
                    step=step,
                    error=float(error[at]),
                    ratio=float(ratio[at]),
                    cosine=min(1.0, float(cosine[at])),
                    size=float(size[at]),
                    rounding=float(rounding[at]),
                )

    def read(self) -> list[TensorDistance]:
        """Of every trained tensor the update that was farthest off."""
        return list(self.worst.values())

    def _vector(self, tensors: Tensors) -> Tensor:
        return torch.cat([tensors[name].double().flatten() for name in self.names])

    def _products(self, one: Tensor, other: Tensor) -> Numbers:
        """Of every tensor the scalar product."""
        pairs = zip(one.split(self.sizes), other.split(self.sizes), strict=True)
        return np.array([float(torch.dot(a, b)) for a, b in pairs])

    def _norms(self, values: Tensor) -> Numbers:
        return np.sqrt(self._products(values, values))


def _excess(update: TensorDistance) -> float:
    return update.error / (update.rounding + SINGLE_UNIT)
