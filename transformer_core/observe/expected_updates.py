"""The updates that an optimizer's rule and a schedule prescribe, computed from their sources."""

import math

import torch
from torch import Tensor

from schemas.config.facts import AdamRule, MomentumRule, UpdateRule
from schemas.config.training import AnySchedule, Constant, Cosine, Linear, Noam


class ExpectedUpdates:
    """The changes of the weights, step by step, according to ``rule``, as one vector."""

    def __init__(self, rule: UpdateRule | None) -> None:
        self.rule = rule
        self.steps: int | Tensor = 0  # by element after a step without some gradients
        self.first: Tensor | None = None
        self.second: Tensor | None = None
        self.change: Tensor | None = None

    def next(
        self, weights: Tensor, gradients: Tensor, rate: float, idle: Tensor | None = None
    ) -> Tensor:
        """The change of ``weights`` by ``gradients``, in the same number format, at learning rate
        ``rate``; the next call overwrites it. The ``idle`` elements, of tensors without a gradient,
        and their moments do not change."""
        if idle is not None:
            moments = [None if m is None else m.clone() for m in (self.first, self.second)]
            change = self.next(weights, gradients, rate).masked_fill_(idle, 0.0)
            self.steps = self.steps - idle.double()
            for new, old in zip((self.first, self.second), moments, strict=True):
                if new is not None and old is not None:
                    new.copy_(torch.where(idle, old, new))
            return change
        self.steps += 1
        match self.rule:
            case AdamRule():
                return self._adam(self.rule, weights, gradients, rate)
            case MomentumRule(momentum, factor):
                old = self.first
                self.first = gradients.clone() if old is None else momentum * old + gradients
                return -rate * factor * self.first
            case _:
                raise TypeError("the rule of this optimizer is not known here")

    def _adam(self, rule: AdamRule, w: Tensor, g: Tensor, rate: float) -> Tensor:
        one, two = rule.betas
        if self.first is None or self.second is None:
            self.first, self.second = torch.zeros_like(w), torch.zeros_like(w)
        if self.change is None:
            self.change = torch.empty_like(w)
        # In place: all weights form one vector, and memory traffic dominates the time.
        self.first.mul_(one).add_(g, alpha=1 - one)
        self.second.mul_(two).addcmul_(g, g, value=1 - two)
        size = torch.div(self.second, 1 - two**self.steps, out=self.change).sqrt_().add_(rule.eps)
        change = torch.div(self.first, size, out=size).mul_(-rate / (1 - one**self.steps))
        return change.add_(w, alpha=-rate * rule.decay)


def expected_rate(schedule: AnySchedule, step: int, steps: int, d_model: int) -> float:
    """Learning rate of ``step``, from 1, of ``steps``, directly from the sources that
    :mod:`schemas.config.training` names."""
    if isinstance(schedule, Noam):
        rising, falling = step / schedule.warmup**1.5, 1 / math.sqrt(step)
        return schedule.factor / math.sqrt(d_model) * min(rising, falling)
    if step <= schedule.warmup:
        return schedule.peak * (step / schedule.warmup)
    done = (step - schedule.warmup) / (steps - schedule.warmup)
    match schedule:
        case Constant():
            return schedule.peak
        case Linear():
            return schedule.peak * (1 - done)
        case Cosine():
            return schedule.peak * (1 + math.cos(math.pi * done)) / 2
