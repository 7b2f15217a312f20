"""Compares every update of a training with the one that its optimizer's rule makes of its gradients.

The rule runs a second time, in 32 bits, with a state of its own that it builds from the same gradients.
So a state that is lost, reset, rounded or sharded wrongly shows at the step that uses it.

Moments in 8 bits are divided into blocks, scaled by the largest element of each block, and rounded to
*dynamic tree quantization* (Dettmers et al., ICLR 2022, arXiv 2110.02861, sections 2.1 and 2.2):
leading zero bits count decades, the first set bit ends them, and the remaining bits divide the decade.
The emulation shares no code with the trained optimizer.
"""

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.config.run_spec import RunSpec
from schemas.results.certificates import TensorDistance
from transformer_core.certify.number_formats import to_bf16
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.observe.expected_updates import ExpectedUpdates, expected_rate

SINGLE_UNIT = 2.0**-24
"""Unit round-off of 32 bits, the rounding error of adding a change to a weight."""

Tensors = Mapping[str, Tensor]
Numbers = NDArray[np.float64]


class CheckedUpdates:
    """Compares the change of all trained tensors at every step.

    It concatenates all tensors into one vector, so that a step takes few operations even with many
    small tensors. If the rule of the optimizer is not known, it compares none.
    """

    def __init__(self, spec: RunSpec, initial: Tensors, trained: set[str]) -> None:
        self.spec = spec
        self.expected = ExpectedUpdates(spec.training.optimizer.rule)
        self.names = [name for name in initial if name in trained]
        self.sizes = [initial[name].numel() for name in self.names]
        self.before = self._vector(initial)
        self.rounded = to_bf16(self.before)
        # Reused at every step: allocating this much memory takes longer than computing with it.
        self.spare, self.taken, self.squares = (torch.empty_like(self.before) for _ in range(3))
        self.worst: dict[tuple[str, int], TensorDistance] = {}
        self.most: dict[str, Numbers] = {}
        """For every tensor, the largest ratio of its error to its rounding error."""

    def done(
        self, step: int, after: Tensors, gradients: Tensors | None, unused: Set[str] = frozenset()
    ) -> None:
        """Compares ``step``, which produced the weights ``after``. If its gradients overflowed,
        ``gradients`` is None, and nothing should have changed; nor should ``unused`` tensors, such as
        experts that no token chose, which have none."""
        before, self.before = self.before, self._vector(after, self.spare)
        if gradients is None:
            change = torch.zeros_like(before)
        else:
            training, width = self.spec.training, self.spec.model.d_model
            rate = expected_rate(self.spec.schedule, step, training.steps, width)
            if self.expected.rule is None:
                self.spare = before
                return
            idle = None
            if not unused.isdisjoint(self.names):
                idle = self._vector({n: torch.full_like(after[n], n in unused) for n in self.names})
                idle = idle.bool()
            change = self.expected.next(before, self._vector(gradients, self.taken), rate, idle)
        lost = SINGLE_UNIT * self._norms(before)
        self._compare("", step, lost, torch.sub(self.before, before, out=before), change)
        self.spare = before

    def rounds(self, step: int, used: Tensors) -> None:
        """Compares the change of the narrow weights ``used`` by the next step: after every update they
        must equal the 32-bit weights, rounded to the nearest."""
        before, self.rounded = self.rounded, to_bf16(self.before)
        nothing = np.zeros(len(self.names))
        found, expected = self._vector(used) - before, self.rounded - before
        self._compare(", rounded", step, nothing, found, expected)

    def keeps(self, step: int, first: Tensors, second: Tensors) -> None:
        """Compares the 8-bit moments that the optimizer keeps after ``step`` with the expected ones,
        and continues with the kept ones, as the next update does."""
        kept = self._vector(first), self._vector(second)
        right = self.expected.first, self.expected.second
        for which, mine, moments in zip(("first", "second"), kept, right, strict=True):
            assert moments is not None, "a step has been done"
            emulated = rounded(moments, self.sizes, signed=which == "first")
            rounding = self._norms(emulated - moments)
            self._compare(f", {which} moment", step, rounding, mine.clone(), moments)
        self.expected.first, self.expected.second = kept

    def _compare(
        self, what: str, step: int, rounding: Numbers, found: Tensor, expected: Tensor
    ) -> None:
        """Records the error of every tensor if it is the largest so far, relative to its ``rounding``
        error (2-norms). Overwrites ``found``."""
        own, size = self._norms(found), self._norms(expected)
        lost = ~np.isfinite(own)
        # A change that is not finite counts as no change, and as one where there should be none.
        apart = np.where(lost, size, self._norms(found.sub_(expected)))
        own = np.where(lost, 0.0, own)
        moved = ((apart > 0) | lost).astype(float)
        still, safe = size == 0, np.where(size == 0, 1.0, size)
        error = np.where(still, moved, apart / safe)
        ratio = np.where(still, 1 + moved, own / safe)
        product = (own**2 + size**2 - apart**2) / 2
        cosine = product / (safe * np.where(own == 0, 1.0, own))
        cosine = np.where(still, 1 - moved, np.where(own == 0, 0.0, cosine)).clip(-1.0, 1.0)
        rounding = np.where(still, 0.0, rounding / safe)
        excess = error / (rounding + SINGLE_UNIT)
        most = self.most.get(what, np.full_like(excess, -1.0))
        self.most[what] = np.fmax(most, excess)
        for at in np.flatnonzero(excess > most).tolist():
            self.worst[what, at] = TensorDistance(
                tensor=self.names[at] + what,
                step=step,
                error=error[at],
                ratio=ratio[at],
                cosine=cosine[at],
                size=size[at],
                rounding=rounding[at],
            )

    def read(self) -> list[TensorDistance]:
        """For every trained tensor, the update with the largest error relative to its rounding."""
        return list(self.worst.values())

    def _vector(self, tensors: Tensors, out: Tensor | None = None) -> Tensor:
        return torch.cat([tensors[name].float().flatten() for name in self.names], out=out)

    def _norms(self, values: Tensor) -> Numbers:
        """The 2-norm of every tensor."""
        # torch's sum adds pairwise, which is as good as 64 bits; its norms and dot products are not.
        squares = torch.mul(values, values, out=self.squares)
        sums = torch.stack([part.sum() for part in squares.split(self.sizes)])
        return np.sqrt(sums.double().cpu().numpy())


BLOCK = 256
"""Number of elements in a block, which share a scale."""
SMALLEST = 4096
"""Smaller tensors, with fewer elements than this, keep their moments in 32 bits."""


def levels(signed: bool) -> Tensor:
    """The 8-bit numbers from -1 (or from 0, unless ``signed``) to 1, sorted, in 64 bits."""
    bits = 7 if signed else 8
    found = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for zeros in range(7):
        parts = 2 ** (bits - 1 - zeros)
        edges = torch.linspace(0.1, 1.0, parts + 1, dtype=torch.float64)
        middles = (edges[:-1] + edges[1:]) / 2
        found += [middles * 10.0**-zeros, -middles * 10.0**-zeros][: 1 + signed]
    return torch.cat(found).sort().values


def rounded(values: Tensor, sizes: Sequence[int], signed: bool) -> Tensor:
    """``values``, a concatenation of tensors with these ``sizes``, with every element rounded to the
    nearest level of its block."""
    known = levels(signed).to(values.device)
    parts = []
    for tensor in values.double().split(list(sizes)):
        if tensor.numel() < SMALLEST:
            parts.append(tensor)
            continue
        blocks = torch.nn.functional.pad(tensor, (0, -tensor.numel() % BLOCK)).view(-1, BLOCK)
        largest = blocks.abs().amax(1, keepdim=True)
        scaled = blocks / torch.where(largest == 0, 1.0, largest)
        above = torch.searchsorted(known, scaled).clamp(1, len(known) - 1)
        low, high = known[above - 1], known[above]
        nearest = torch.where(scaled - low < high - scaled, low, high)
        parts.append((nearest * largest).flatten()[: tensor.numel()])
    return torch.cat(parts).to(values.dtype)


def kept_moments(tensors: CanonicalTensors) -> list[dict[str, Tensor]] | None:
    """The first and second moments that the optimizer keeps; None unless it keeps them in 8 bits."""
    setup = tensors.setup
    if setup.spec.training.optimizer.state.moment_bits != 8:
        return None
    return [tensors.of_trained(partial(_kept, setup.optimizer.state, n)) for n in (1, 2)]


def _kept(states: Mapping[Tensor, Any], number: int, parameter: Tensor) -> Tensor | None:
    if not (state := states.get(parameter)):
        return None  # no step has given it a gradient
    moments: Tensor = state[f"state{number}"]
    if moments.dtype != torch.uint8:
        return moments
    values = state[f"qmap{number}"][moments.flatten().long()]
    scales = state[f"absmax{number}"].repeat_interleave(BLOCK)[: values.numel()]
    return (values * scales).view_as(parameter)
