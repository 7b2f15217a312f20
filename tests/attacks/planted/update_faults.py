"""Optimizer, schedule and clipping."""

from typing import Any

from torch import nn

from tests.attacks.planted.fault import fault, faults_of, schedule
from tests.attacks.planted.planting import (
    Patch,
    arguments,
    around_step,
    before_update,
    keep,
    result,
    swap,
)
from transformer_core.training import assemble, loop, optimizer, precision


def other_arguments(**changes: Any) -> Patch:
    return swap(optimizer, "_adam_arguments", result(lambda found: found | changes))


rate = faults_of("schedule", loop, "learning_rate")
clipping = faults_of("clipping", precision.Precision, "step")


fault("every third update skipped", "optimizer", keep(lambda _, n: n % 3 == 0))


@fault("one tensor not given to the optimizer", "optimizer", assemble, "build_optimizer")
def without_the_first(real, spec, parameters, *more):
    return real(spec, list(parameters)[1:], *more)


fault("second moment decays faster", "optimizer", other_arguments(betas=(0.9, 0.9)))
fault("moments exchanged", "optimizer", other_arguments(betas=(0.98, 0.9)))
fault("eps a thousand times larger", "optimizer", other_arguments(eps=1e-3))
fault("weight decay where none is asked for", "optimizer", other_arguments(weight_decay=0.1))


@fault("state lost at step 4", "optimizer", around_step)
def forget_state(trainer, _, number):
    if number == 4:
        trainer.optimizer.state.clear()


@fault("two updates of a gradient", "optimizer", precision.Precision, "update")
def _(real, self, o, norm):
    return (real(self, o, norm), real(self, o, norm))[0]


@fault("only biases learn in the last step", "optimizer", keep)
def _(name, n):
    return n == 6 and "weight" in name


rate("rate 2 % too large", result(lambda r: 1.02 * r), made=True)
rate(
    "warm-up one step early",
    arguments(lambda s, n, *rest: (s, n + 1, *rest)),
    made=True,
    base=schedule(kind="linear", warmup=3),
)
rate(
    "no decay after the warm-up",
    arguments(lambda s, n, *rest: (s, min(n, 3), *rest)),
    made=True,
    base=schedule(kind="cosine", warmup=3),
)
clipping("gradients are not clipped", arguments(lambda s, o, p, c: (s, o, p, 0.0)), made=True)
clipping(
    "gradients are clipped at half the norm",
    arguments(lambda s, o, p, c: (s, o, p, c / 2)),
    made=True,
)


@fault("every tensor clipped by itself", "clipping", before_update)
def clip_each(parameters):
    for p in parameters:
        nn.utils.clip_grad_norm_([p], 0.1)


rate(
    "the rate of the step before",
    arguments(lambda s, n, *rest: (s, max(1, n - 1), *rest)),
    made=True,
    base=schedule(kind="cosine", warmup=3),
)
rate(
    "the rate of a wider model",
    arguments(lambda s, n, total, d: (s, n, total, 2 * d)),
    made=True,
    base={"training": {"schedule": {"kind": "noam", "warmup": 3, "factor": 1.0}}},
)


@fault("one row of the embedding never learns", "optimizer", around_step)
def row_back(trainer, before, _):
    for (name, p), old in zip(trainer.model.named_parameters(), before, strict=True):
        if name.endswith("embedding.weight"):
            p[4] = old[4]


fault(
    "velocity lost at every third step",
    "optimizer",
    around_step(lambda t, _, n: t.optimizer.state.clear() if n % 3 == 0 else None),
    base={"training": {"optimizer": {"kind": "sgd"}}},
)
