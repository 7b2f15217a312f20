"""Optimizer, schedule and clipping."""

from typing import Any

from torch import nn

from tests.attacks.planted.fault import Fault, schedule
from tests.attacks.planted.planting import (
    Patch,
    arguments,
    around_step,
    before_update,
    keep,
    result,
    swap,
)
from transformer_core.training import assemble, loop, optimizer
from transformer_core.training import precision as autocast


def clip_each(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        nn.utils.clip_grad_norm_([p], 0.1)


def forget_state(trainer: Any, _: Any, number: int) -> None:
    if number == 4:
        trainer.optimizer.state.clear()


def row_back(trainer: Any, before: Any, _: int) -> None:
    for (name, p), old in zip(trainer.model.named_parameters(), before, strict=True):
        if name.endswith("embedding.weight"):
            p[4] = old[4]


def other_arguments(**changes: Any) -> Patch:
    return swap(optimizer, "_adam_arguments", result(lambda found: found | changes))


def without_the_first(real: Any) -> Any:
    def build(spec: Any, parameters: Any, *more: Any) -> Any:
        return real(spec, list(parameters)[1:], *more)

    return build


FAULTS = [
    Fault("every third update skipped", "optimizer", keep(lambda _, n: n % 3 == 0)),
    Fault(
        "one tensor not given to the optimizer",
        "optimizer",
        swap(assemble, "build_optimizer", without_the_first),
    ),
    Fault("second moment decays faster", "optimizer", other_arguments(betas=(0.9, 0.9))),
    Fault("moments exchanged", "optimizer", other_arguments(betas=(0.98, 0.9))),
    Fault("eps a thousand times larger", "optimizer", other_arguments(eps=1e-3)),
    Fault("weight decay where none is asked for", "optimizer", other_arguments(weight_decay=0.1)),
    Fault("state lost at step 4", "optimizer", around_step(forget_state)),
    Fault(
        "two updates of a gradient",
        "optimizer",
        swap(
            autocast.Precision,
            "update",
            lambda real: lambda self, o, norm: (real(self, o, norm), real(self, o, norm))[0],
        ),
    ),
    Fault(
        "only biases learn in the last step",
        "optimizer",
        keep(lambda name, n: n == 6 and "weight" in name),
    ),
    Fault(
        "rate 2 % too large",
        "schedule",
        swap(loop, "learning_rate", result(lambda r: 1.02 * r)),
    ),
    Fault(
        "warm-up one step early",
        "schedule",
        swap(loop, "learning_rate", arguments(lambda s, n, *rest: (s, n + 1, *rest))),
        base=schedule(kind="linear", warmup=3),
    ),
    Fault(
        "no decay after the warm-up",
        "schedule",
        swap(loop, "learning_rate", arguments(lambda s, n, *rest: (s, min(n, 3), *rest))),
        base=schedule(kind="cosine", warmup=3),
    ),
    Fault(
        "gradients are not clipped",
        "clipping",
        swap(autocast.Precision, "step", arguments(lambda s, o, p, c: (s, o, p, 0.0))),
    ),
    Fault(
        "gradients are clipped at half the norm",
        "clipping",
        swap(autocast.Precision, "step", arguments(lambda s, o, p, c: (s, o, p, c / 2))),
    ),
    Fault("every tensor clipped by itself", "clipping", before_update(clip_each)),
    Fault(
        "the rate of the step before",
        "schedule",
        swap(loop, "learning_rate", arguments(lambda s, n, *rest: (s, max(1, n - 1), *rest))),
        base=schedule(kind="cosine", warmup=3),
    ),
    Fault(
        "the rate of a wider model",
        "schedule",
        swap(loop, "learning_rate", arguments(lambda s, n, total, d: (s, n, total, 2 * d))),
        base={"training": {"schedule": {"kind": "noam", "warmup": 3, "factor": 1.0}}},
    ),
    Fault("one row of the embedding never learns", "optimizer", around_step(row_back)),
    Fault(
        "velocity lost at every third step",
        "optimizer",
        around_step(lambda t, _, n: t.optimizer.state.clear() if n % 3 == 0 else None),
        base={"training": {"optimizer": {"kind": "sgd"}}},
    ),
]
