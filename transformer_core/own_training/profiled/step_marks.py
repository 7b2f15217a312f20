"""The phases of the user's step as ranges of a profiler, put around them from outside."""

from collections.abc import Callable
from typing import Any

from transformer_core.observe.ranges import (
    Mark,
    leaving_in_backward,
    mark_forward,
    replace,
    within,
)
from transformer_core.own_training.own_step import LossModule, OwnTrainer
from transformer_core.trace.events.phases import BACKWARD, DATA, FORWARD, LOSS, OPTIMIZER


def mark_own_phases(trainer: OwnTrainer, mark: Mark) -> Callable[[], Any]:
    """Let the phases of every step of ``trainer`` lie in ranges of their own; gives what takes the
    next batch, in a range too.

    The user's function of the loss calls the model: what it does beside that is the loss. Of a
    compiled model both are the forward pass, since hooks would be compiled with it.
    """
    strategy, precision, model = trainer.strategy, trainer.precision, trainer.parts.module
    entered = model._compiled_call_impl is None
    for part in trainer.module.modules():
        if isinstance(part, LossModule):
            mark_forward(part, mark, LOSS if entered else FORWARD)
    if entered:
        mark_forward(model, mark)
    replace(strategy, "sync_context", leaving_in_backward(strategy.sync_context, mark))
    replace(precision, "backward", within(precision.backward, BACKWARD, mark))
    replace(strategy, "reduce_gradients", within(strategy.reduce_gradients, BACKWARD, mark))
    # Where nothing is clipped or scaled the optimizer is called itself, in a range of torch's.
    replace(precision, "step", within(precision.step, OPTIMIZER, mark))
    return within(trainer.batch, DATA, mark)
