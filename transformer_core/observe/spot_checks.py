"""Checks of randomly chosen steps during a timed run.

A certificate sees only the first steps of a separate training. Here the optimizer's updates in a few
steps of the timed run itself are recomputed in 64 bits, from the weights, gradients and state just
before. This reveals faults that begin late, or only in timed runs. The clock stops meanwhile.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from schemas.config.facts import AdamRule
from schemas.results.runs import SpotCheck
from transformer_core.observe.clock import WindowClock
from transformer_core.observe.expected_updates import ExpectedUpdates, expected_rate
from transformer_core.parallel.sharded_weights import is_sharded, local
from transformer_core.training.assemble import Setup
from transformer_core.training.observer import Observer
from transformer_core.training.optimizer import MASTER

STEPS = 2
"""Number of checked steps."""
UNIT = 2.0**-24
"""Unit round-off of 32 bits."""
MOMENTS = {"exp_avg": "first", "exp_avg_sq": "second", "momentum_buffer": "first"}
"""Our names of the moments, by torch's names in the optimizer's state."""


def _wide(tensor: Tensor) -> Tensor:
    """A copy of this rank's part of a tensor, in 64 bits and on the host: on a GPU, a run that just fits
    has no room for one, and it would count as memory of the training."""
    return local(tensor).detach().to("cpu", copy=True).double()


def _finite(value: float) -> float:
    """``value``, or a huge number instead of infinity and NaN, which comparisons would lose."""
    return value if math.isfinite(value) else 1e300


@dataclass
class Expected:
    """This rank's part of a tensor as the next step must leave it."""

    weight: Tensor  # in 64 bits: the only copy that is kept during the step
    size: float  # norm of the change
    lost: float  # norm of the largest rounding errors


class SpotChecks(Observer):
    """Checks random steps from ``first`` on; ``clock`` stops meanwhile.

    Every rank must have this observer. It does not check optimizers with 8-bit moments or an unknown
    rule, strategies in which one process updates the weights for all, or ranks that train apart and
    each skip the steps in which a scaled gradient overflows.

    To save memory of the host, only one rank checks a tensor that all of them hold whole. A fault on
    another rank makes its weights differ from those of the others, which shows, too.
    """

    def __init__(self, setup: Setup, clock: WindowClock, first: int) -> None:
        self.setup, self.clock = setup, clock
        self.found: list[SpotCheck] = []
        rule = self._rule = setup.spec.training.optimizer.rule
        names = {p: name for name, p in setup.module.named_parameters()}
        updated = [p for group in setup.optimizer.param_groups for p in group["params"]]
        self._names = [names.get(p, "") for p in updated]
        self._numbers = {p: number for number, p in enumerate(updated)}
        self._whole = set(setup.strategy.replica.parameters() if setup.strategy.replica else ())
        state = setup.spec.training.optimizer.state
        known = rule is not None and state.moment_bits == 32 and not state.divided
        # Only ranks whose gradients are finite would stop the clock, which waits for all.
        skips_alone = setup.strategy.apart and setup.spec.training.precision.numbers.loss_scaled
        self._checked = known and not setup.spec.parallel.central and not skips_alone
        self._first = first
        self._waiting: set[int] = set()
        self._step = 0
        self._expected: dict[Tensor, Expected] = {}
        self._error = self._rate = 0.0
        self._where = 0  # number of the tensor with that error
        setup.optimizer.register_step_pre_hook(self._begin)
        setup.optimizer.register_step_post_hook(self._end)

    def start(self, step: int) -> None:
        """Chooses the steps: after a resumption, among those that are left."""
        self._step = step
        left = range(max(self._first, step + 1), self.setup.spec.training.steps + 1)
        if self._checked and left:
            mine = random.SystemRandom().sample(left, min(STEPS, len(left)))
            # All ranks check the steps that the main rank chose.
            self._waiting = {int(step) for step in self.setup.strategy.gather(mine)[0]}

    def _begin(self, optimizer: Optimizer, *_: Any) -> None:
        if self._step + 1 not in self._waiting:
            return
        self.clock.pause()
        self.setup.strategy.rest()  # 64 bits on the host take long for large models
        training, width = self.setup.spec.training, self.setup.spec.model.d_model
        schedule = self.setup.spec.schedule
        rate = expected_rate(schedule, self._step + 1, training.steps, width)
        scale = getattr(optimizer, "grad_scale", None)
        self._error = self._rate = 0.0
        self._where = 0
        counts = []
        for group in optimizer.param_groups:
            asked, found = rate * group.get("rate_factor", 1.0), float(group["lr"])
            off = abs(found - asked) / asked if asked else float(found != 0)
            self._rate = max(self._rate, _finite(off))
            for p in group["params"]:
                if p.grad is not None and self._is_mine(p):
                    gradient = _wide(p.grad).div_(1.0 if scale is None else float(scale))
                    state = optimizer.state.get(p, {})
                    counts.append(int(state.get("step", 0)))
                    self._expected[p] = self._next(p, gradient, state, rate)
        # Moments that were lost with their count make an update of their own.
        counted = isinstance(self._rule, AdamRule) and not training.precision.numbers.loss_scaled
        if counted and counts and max(counts) != self._step:
            self._error = 1.0
        self.clock.resume()

    def _is_mine(self, p: Tensor) -> bool:
        process = self.setup.process
        return p not in self._whole or self._numbers[p] % process.world_size == process.rank

    def _next(self, p: Tensor, gradient: Tensor, state: Any, rate: float) -> "Expected":
        update = ExpectedUpdates(self._rule)
        update.steps = int(state.get("step", 0))
        moments = {MOMENTS[name]: _wide(value) for name, value in state.items() if name in MOMENTS}
        update.first, update.second = moments.get("first"), moments.get("second")
        weight = _wide(state.get(MASTER, p))
        change = update.next(weight, gradient, rate)
        # A sum of weight and change is rounded to the weight's format.
        lost, size = UNIT * float(weight.norm()), float(change.norm())
        return Expected(weight.add_(change), size, lost)

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        if self._step + 1 not in self._waiting:
            return
        self.clock.pause()
        self.setup.strategy.rest()
        for p, expected in self._expected.items():
            state = optimizer.state[p]
            kept = _wide(state.get(MASTER, p))
            unlike = MASTER in state and not torch.equal(_wide(p), kept.bfloat16().double())
            apart = float(kept.sub_(expected.weight).norm())
            error = max(0.0, apart - 4 * expected.lost)
            error = error / expected.size if expected.size else float(apart > 0)
            error = _finite(math.inf if unlike or math.isnan(apart) else error)
            if error > self._error:
                self._error, self._where = error, self._numbers[p]
        self._expected = {}
        self.clock.resume()

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        self._step = step
        if step not in self._waiting:
            return
        self._waiting.discard(step)
        self.clock.pause()
        skipped = not math.isfinite(float(norm))
        apart = self.setup.strategy.replica_difference() or 0.0
        self.setup.strategy.rest()
        mine = [self._error, self._rate, _finite(self.clipped_norm(norm)), self._where]
        everyone = self.setup.strategy.gather(mine)
        worst = [max(values) for values in zip(*everyone, strict=True)]
        where = int(max(everyone)[3])
        self.clock.resume()
        self.found.append(
            SpotCheck(
                step=step,
                skipped=skipped,
                update=0.0 if skipped else worst[0],
                tensor=self._names[where] if worst[0] else "",
                rate=0.0 if skipped else worst[1],
                clipping=0.0 if skipped else worst[2],
                replicas=_finite(apart),
            )
        )

    def clipped_norm(self, norm: Tensor) -> float:
        """Relative distance of the gradient's norm after clipping from the required one; 0 if each
        rank has a part of the gradient, or the optimizer's kernel clips."""
        training = self.setup.spec.training
        gradients = [p.grad for p in self.setup.module.parameters() if p.grad is not None]
        if (
            any(map(is_sharded, gradients))
            or not gradients
            or not training.clip_norm
            or training.clipping == "folded"
        ):
            return 0.0
        size = float(norm)
        asked = min(size, training.clip_norm)
        found = math.sqrt(sum(float(_wide(g).square().sum()) for g in gradients))
        # torch divides by the norm plus 1e-6; 16 bits round each element.
        return abs(found / asked - 1) if asked else float(found > 0)
