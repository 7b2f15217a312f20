"""What dropout does to loss and gradient, whatever computes it: draws at the same weights.

Masks need not be seen for that, so it also tells of the models of other libraries and of users, and
of what happens between the model and the optimizer: masks that are drawn once for several steps or
micro-batches give the same loss several times, masks that are not those of the forward pass when it
is computed once more give a gradient along which the loss does not change as it says.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from schemas.config.batching import FixedSize
from schemas.results.equivalence import DropoutMoments
from transformer_core.certify.trajectory.independent.number_formats import SINGLE, format_of
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import optimizer_step
from transformer_core.training.optimization.master_weights import masters_of

PAIRS = 2
"""Sentence pairs of a copy: few, so that the spread of their loss is wide."""
COPIES = 4
"""Copies of the pairs in a batch, over all ranks and micro-batches."""
DRAWS = 4
CHANGE, CHANGE_ROUNDED = 0.02, 0.05
"""By how much the loss should change for the slope, in nats: much beside rounding, and little
beside what bends the loss. The second where losses have fewer bits."""


def dropout_moments(setup: Setup) -> DropoutMoments | None:
    """Loss and gradient of the training ``setup`` at its weights, with dropout on. It is of no use
    for anything else afterwards but other weights; every rank must call this. Null where the copies
    cannot be divided among the ranks."""
    _, shares = setup.strategy.share
    if COPIES % shares:
        return None
    return _Draws(setup, COPIES // shares).read()


@dataclass
class _Draws:
    setup: Setup
    micro_batches: int
    losses: list[float] = field(default_factory=list)
    """Of the copies of this rank, in order."""

    def __post_init__(self) -> None:
        self.batch = _copies(self.setup, self.micro_batches)
        self.tokens = self.batch.target_tokens / COPIES

    def read(self) -> DropoutMoments:
        setup = self.setup
        setup.module.train()
        hook = setup.module.register_forward_hook(self._keep)
        self._seed()
        _, norm = self._draw()
        norms = [norm]
        direction = [None if p.grad is None else p.grad.clone() for p in setup.module.parameters()]
        norms += [self._draw()[1] for _ in range(DRAWS - 1)]
        hook.remove()
        everyone = setup.strategy.gather(self.losses)
        shares = setup.strategy.share[1]
        if setup.strategy.held_back() is not None:
            norms = []
        return DropoutMoments(
            losses=[x / self.tokens for of_rank in everyone[:shares] for x in of_rank],
            grad_norms=[n for n in norms if math.isfinite(n)],
            slope=self._slope(norm, direction),
        )

    def _seed(self) -> None:
        torch.manual_seed(self.setup.spec.training.seed + self.setup.process.rank)

    def _draw(self) -> tuple[float, float]:
        """Loss per target token of the whole batch and norm of its gradient; nothing learns."""
        loss, norm = optimizer_step(self.setup, self.batch, 0.0)
        total = float(self.setup.strategy.sum(loss.detach().double()))
        return total / self.batch.target_tokens, float(norm)

    def _keep(self, module: Any, given: Any, loss: Tensor) -> None:
        if loss.numel() == 1:  # on other ranks of a central loss it is something else
            self.losses.append(float(loss.detach()))
        else:
            self.losses.append(math.nan)

    def _slope(self, norm: float, direction: list[Tensor | None]) -> float | None:
        """A central difference along the gradient, at the masks of the first draw."""
        (norm,) = self.setup.strategy.gather([norm])[0]
        if not math.isfinite(norm) or not norm:
            return None
        limit = self.setup.spec.training.clip_norm
        clipped = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        change = CHANGE if format_of(self.setup.spec) is SINGLE else CHANGE_ROUNDED
        length = change / (clipped * norm**2)
        sides = []
        for move in (length, -2 * length):
            self.setup.strategy.update(_moved(self.setup, direction, move))
            self._seed()
            sides.append(self._draw()[0])
        return (sides[0] - sides[1]) / (2 * change)


def _moved(setup: Setup, direction: list[Tensor | None], length: float) -> Callable[[], Tensor]:
    """An update by ``length`` times a gradient."""

    @torch.no_grad()
    def update() -> Tensor:
        # Where the optimizer keeps weights of more bits, moves are lost in those of fewer.
        masters = masters_of(setup.optimizer)
        for parameter, step in zip(setup.module.parameters(), direction, strict=True):
            if step is not None:
                kept = masters.get(parameter, parameter)
                kept.add_(step.to(kept.dtype), alpha=length)
                if kept is not parameter:
                    parameter.copy_(kept)
        return torch.zeros((), device=setup.device)

    return update


def _copies(setup: Setup, micro_batches: int) -> GlobalBatch:
    """The first pairs of the training, the same in every micro-batch of every rank."""
    spec = setup.spec
    batching = FixedSize(kind="fixed_size", pairs=PAIRS, rows=spec.batching.rows)
    feed = Feed(setup.train_store, batching, spec.training.seed, 0, 1, 1, setup.device, prefetch=0)
    with closing(feed.batches()) as batches:
        (micro,) = (whole := next(batches)).micro_batches
    tokens = int((micro.target_output != PAD).sum())
    return replace(whole, micro_batches=[micro] * micro_batches, target_tokens=tokens * COPIES)
